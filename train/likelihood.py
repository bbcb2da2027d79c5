"""Log-probabilities of chosen tokens, without ever holding the logits of all positions.

A vocabulary has 50,000 to 150,000 tokens: the logits of a batch would take more memory than all else. They are made for
some positions at a time, reduced to one number each, and made again in the backward pass.
"""

from typing import Any

import torch

LOGITS_AT_ONCE = 1 << 25  # in fp32 128 MiB; enough positions for a GPU not to wait for the weights of the head


def log_probabilities(
    hidden: torch.Tensor, head: torch.nn.Linear, targets: torch.Tensor, temperature: float
) -> torch.Tensor:
    """log softmax(head(hidden) / temperature)[targets], (n,), in fp32 or wider; its gradient goes to `hidden` alone.

    Args:
        hidden: last hidden states before each target, (n, size).
        head: what makes logits of them; frozen.
        targets: token ids, (n,).
        temperature: above 0.
    """
    chunk = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    chosen: Any = _Chosen.apply
    parts = zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True)
    return torch.cat([chosen(h, head.weight, head.bias, t, temperature) for h, t in parts])


class _Chosen(torch.autograd.Function):
    """The same for a few positions, with the logits made anew in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
    ) -> torch.Tensor:
        logits = _logits(hidden, weight, bias, temperature)
        total = logits.logsumexp(dim=-1)
        ctx.save_for_backward(hidden, weight, bias, targets, total)
        ctx.temperature = temperature
        return logits.gather(1, targets[:, None])[:, 0] - total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        """d log p(target) / d logits = (one-hot(target) - p) / T."""
        hidden, weight, bias, targets, total = ctx.saved_tensors
        (gradient,) = gradients
        slope = _logits(hidden, weight, bias, ctx.temperature).sub_(total[:, None]).exp_().neg_()
        slope.scatter_add_(1, targets[:, None], torch.ones_like(total)[:, None])
        slope.mul_((gradient / ctx.temperature)[:, None])
        return slope.to(weight.dtype) @ weight, None, None, None, None


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).div_(temperature)
