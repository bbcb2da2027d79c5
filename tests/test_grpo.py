"""The loss of an update: by hand, and in double precision against a plain computation of everything at once."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import make_batch, plain_logprobs, tiny_base
from transformers import AutoModelForCausalLM

from train.grpo import importance_weights, policy_loss
from train.likelihood import log_probabilities
from train.packing import ATTENTION, packs

LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=20)


def doubles(values: list[float], *, learns: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=learns)


def test_weights_are_ratios_of_probabilities_up_to_the_cap() -> None:
    learner = doubles([math.log(0.3), math.log(0.5), math.log(0.2)])
    sampler = doubles([math.log(0.2), math.log(0.1), math.log(0.4)])
    torch.testing.assert_close(importance_weights(learner, sampler, 2.0), doubles([1.5, 2.0, 0.5]))
    torch.testing.assert_close(importance_weights(learner, sampler, None), doubles([1.0, 1.0, 1.0]))


def test_a_token_that_the_sampler_held_impossible_has_the_weight_of_the_cap() -> None:
    assert float(importance_weights(doubles([0.0]), doubles([-5000.0]), 2.0)) == 2.0
    assert float(importance_weights(doubles([-5000.0]), doubles([0.0]), 2.0)) == 0.0


@given(LOGPROBS, st.floats(1, 10))
def test_weights_have_no_gradient_and_stay_between_0_and_the_cap(values: list[float], cap: float) -> None:
    learner = doubles(values, learns=True)
    weights = importance_weights(learner, doubles(values[::-1]), cap)
    assert not weights.requires_grad
    assert bool(((weights >= 0) & (weights <= cap)).all())


def test_the_loss_by_hand() -> None:
    logprobs = doubles([-1.0, -2.0, -3.0], learns=True)
    loss = policy_loss(logprobs, doubles([1.0, 1.0, -0.5]), doubles([1.0, 2.0, 0.5]), 4.0)
    assert float(loss.detach()) == pytest.approx((1 + 4 - 0.75) / 4)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs.grad, doubles([-0.25, -0.5, 0.0625]))


@given(LOGPROBS, st.integers(1, 50), st.integers(1, 50))
def test_dilution_scales_the_gradient_by_the_share_of_trajectories_kept(
    values: list[float], kept: int, without_advantage: int
) -> None:
    gradients = []
    for trajectories in (kept, kept + without_advantage):
        logprobs = doubles(values, learns=True)
        advantages, ones = torch.linspace(-1, 1, len(values)).double(), torch.ones(len(values)).double()
        loss = policy_loss(logprobs, advantages, ones, trajectories)
        loss.backward()  # type: ignore[no-untyped-call]
        assert logprobs.grad is not None
        gradients.append(logprobs.grad)
    torch.testing.assert_close(gradients[0] * kept / (kept + without_advantage), gradients[1])


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
@pytest.mark.parametrize("budget", [1, 60, 10_000])
def test_packed_in_parts_or_plain_in_double_precision_the_gradient_is_the_same(
    temperature: float, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.likelihood.LOGITS_AT_ONCE", 300)  # three positions at a time
    folder, batch = tiny_base(tmp_path).model, make_batch(11)
    teaching = [example for example in batch if example.teaches]

    def packed_loss(model: Any) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for pack in packs(teaching, budget, "cpu"):
            hidden = model.model(
                input_ids=pack.token_ids, position_ids=pack.position_ids, lengths=pack.lengths, use_cache=False
            ).last_hidden_state[0]
            logprobs = log_probabilities(hidden[pack.before], model.lm_head, pack.targets, temperature)
            weights = importance_weights(logprobs, pack.sampled.double(), 2.0)
            total = total + policy_loss(logprobs, pack.advantages.double(), weights, len(batch))
        return total

    def plain_loss(model: Any) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for example in batch:
            logprobs = plain_logprobs(model, example, temperature)
            sampled = torch.tensor(example.logprobs, dtype=torch.float32).double()
            weights = (logprobs.detach() - sampled).exp().clamp(max=2.0)
            total = total - (weights * example.advantage * logprobs).sum() / len(batch)
        return total

    losses, gradients = [], []
    for attention, compute in ((ATTENTION, packed_loss), ("sdpa", plain_loss)):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation=attention)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
        loss = compute(model)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert gradients[0].keys() == gradients[1].keys()
    assert len(gradients[0]) > 10
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-9, atol=1e-12)
