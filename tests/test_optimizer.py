"""AdamW in fp32 behind an adapter in bf16."""

import torch

from train.optimizer import Optimizer


def adapter(dtype: torch.dtype) -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.nn.Parameter(torch.randn(3, 4, generator=generator).to(dtype)) for name in ("a", "b")}


def loss_of(weights: dict[str, torch.nn.Parameter], step: int) -> torch.Tensor:
    wave = torch.arange(12.0).view(3, 4).add(step).sin()
    return (weights["a"].float() * wave).sum() + (weights["b"].float().square() * wave).sum()


def test_in_fp32_it_is_pytorchs_own_adamw_with_clipping() -> None:
    ours, plain = adapter(torch.float32), adapter(torch.float32)
    optimizer = Optimizer(ours, learning_rate=0.1, max_norm=0.5)
    reference = torch.optim.AdamW(plain.values(), lr=0.1, weight_decay=0.0)
    for step in range(5):
        loss_of(ours, step).backward()  # type: ignore[no-untyped-call]
        norm = optimizer.step()
        loss_of(plain, step).backward()  # type: ignore[no-untyped-call]
        assert norm == float(torch.nn.utils.clip_grad_norm_(plain.values(), 0.5))
        reference.step()
        reference.zero_grad()
    assert optimizer.number == 5
    for name, weight in ours.items():
        torch.testing.assert_close(weight, plain[name], rtol=0, atol=0)


def test_steps_too_small_for_bf16_add_up() -> None:
    weights = adapter(torch.bfloat16)
    before = weights["a"].detach().clone()
    optimizer = Optimizer(weights, learning_rate=1e-4, max_norm=1.0)
    for _ in range(300):
        weights["a"].sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    moved = before.float() - weights["a"].float()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.03), rtol=0, atol=0.01)


def test_gradients_too_small_for_a_bf16_sum_add_up() -> None:
    weights = adapter(torch.bfloat16)
    optimizer = Optimizer(weights, learning_rate=1e-4, max_norm=1.0)
    for _ in range(1000):
        weights["a"].sum().backward()  # type: ignore[no-untyped-call]
    assert float(optimizer.gradients[0].min()) == 1000  # in bf16 it would have stayed at 256


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_forgotten() -> None:
    weights = adapter(torch.float32)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer = Optimizer(weights, learning_rate=0.1, max_norm=1.0)
    (weights["a"].sum() * float("nan")).backward()  # type: ignore[no-untyped-call]
    assert optimizer.step() != optimizer.step()  # nan, then nothing: 0
    assert optimizer.number == 1
    (weights["b"].sum() * float("inf")).backward()  # type: ignore[no-untyped-call]
    assert optimizer.step() == float("inf")
    assert all(torch.equal(weight, before[name]) for name, weight in weights.items())
