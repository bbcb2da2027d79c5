"""Log-probabilities of chosen tokens: those of log_softmax, whatever is held at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train import likelihood
from train.likelihood import log_probabilities


def make(
    positions: int, dtype: torch.dtype, *, bias: bool = False
) -> tuple[torch.Tensor, torch.nn.Linear, torch.Tensor]:
    generator = torch.Generator().manual_seed(positions)
    head = torch.nn.Linear(5, 11, bias=bias, dtype=dtype).requires_grad_(requires_grad=False)
    head.weight.normal_(generator=generator)
    hidden = torch.randn(positions, 5, dtype=dtype, generator=generator)
    return hidden, head, torch.randint(11, (positions,), generator=generator)


@given(st.integers(1, 30), st.integers(1, 400), st.floats(0.1, 3.0), st.booleans())
@settings(deadline=None)
def test_they_are_those_of_log_softmax_however_many_are_made_at_once(
    positions: int, at_once: int, temperature: float, bias: bool
) -> None:
    hidden, head, targets = make(positions, torch.float64, bias=bias)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihood, "LOGITS_AT_ONCE", at_once)
        got = log_probabilities(hidden, head, targets, temperature)
    expected = torch.log_softmax(head(hidden) / temperature, dim=-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("bias", [True, False])
def test_their_gradient_is_that_of_finite_differences(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", 33)
    hidden, head, targets = make(7, torch.float64, bias=bias)
    hidden.requires_grad_()
    assert torch.autograd.gradcheck(lambda h: log_probabilities(h, head, targets, 0.6), (hidden,))


def test_from_bf16_they_come_in_fp32() -> None:
    hidden, head, targets = make(4, torch.bfloat16)
    hidden.requires_grad_()
    logprobs = log_probabilities(hidden, head, targets, 1.0)
    assert logprobs.dtype == torch.float32
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16
    plain = hidden.detach().float().requires_grad_()
    weight = head.weight.float()
    torch.log_softmax(plain @ weight.T, dim=-1).gather(1, targets[:, None]).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(hidden.grad.float(), plain.grad, rtol=0.05, atol=0.05)


def test_the_logits_of_all_positions_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = torch.nn.functional.linear

    def watched(*arguments: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = real(*arguments)
        sizes.append(logits.numel())
        return logits

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", 44)
    hidden, head, targets = make(30, torch.float64)
    log_probabilities(hidden.requires_grad_(), head, targets, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    assert max(sizes) == 44
    assert sum(sizes) == 2 * 30 * 11  # once forward, once again backward
