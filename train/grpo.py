"""The loss of one GRPO update: pure functions on tensors, one entry a sampled token.

    loss = -1/Z · sum over sampled tokens of  w · A · log p

A is the advantage of the token's trajectory, log p the learner's log-probability under the distribution that was
sampled from (temperature applied), w = min(C, p / q) the truncated importance weight with q the sampler's probability,
and Z the denominator (`train.batch.denominator`). Neither w nor A carries a gradient. There is no KL term and no critic
(`docs/training.md` says why).
"""

import torch


def importance_weights(logprobs: torch.Tensor, sampled: torch.Tensor, cap: float | None) -> torch.Tensor:
    """w = min(C, p / q), without a gradient; 1 without a cap.

    Args:
        logprobs: the learner's log-probabilities, (tokens,).
        sampled: the sampler's, (tokens,).
        cap: C ≥ 1, or None for no weights.
    """
    if cap is None:
        return torch.ones_like(sampled)
    return (logprobs.detach() - sampled).exp().clamp(max=cap)


def policy_loss(
    logprobs: torch.Tensor, advantages: torch.Tensor, weights: torch.Tensor, denominator: float
) -> torch.Tensor:
    """-1/Z · sum of w · A · log p, a scalar; the three are (tokens,). What parts of a batch give adds up."""
    return -(weights * advantages * logprobs).sum() / denominator
