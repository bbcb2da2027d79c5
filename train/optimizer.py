"""AdamW on a copy of the adapter in fp32.

A small step on a bf16 weight is lost to rounding, and so is a small gradient added to a bf16 sum. So weights, gradients
and moments are kept here in fp32, and the adapter that computes is this copy, rounded after every step.
"""

from collections.abc import Mapping
from typing import Any

import torch

MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps for each weight


class Optimizer:
    """Steps on the `adapter`: its weights by name, whose gradients are taken over as they come.

    `number` counts the steps taken.
    """

    def __init__(self, adapter: Mapping[str, torch.nn.Parameter], learning_rate: float, max_norm: float) -> None:
        self.number = 0
        self._adapter = adapter
        self._max_norm = max_norm
        self._weights = {name: weight.detach().float().clone() for name, weight in adapter.items()}
        # No decay: it would pull the policy to the base model, which is not in the loss.
        self._adamw = torch.optim.AdamW(self._weights.values(), lr=learning_rate, weight_decay=0.0)
        self.clear()
        for name, weight in adapter.items():
            weight.register_post_accumulate_grad_hook(self._collector(name))  # type: ignore[no-untyped-call]

    @property
    def gradients(self) -> list[torch.Tensor]:
        """The gradients gathered so far, in the adapter's order; may be written to."""
        return [weight.grad for weight in self._weights.values() if weight.grad is not None]

    def step(self) -> float:
        """Clip the gradient and take a step, then forget the gradient; returns its norm before clipping.

        A gradient that is not finite moves nothing.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights.values(), self._max_norm))
        if norm < float("inf"):
            self._adamw.step()
            self.number += 1
            self._publish()
        self.clear()
        return norm

    def clear(self) -> None:
        """Forget the gradient."""
        for weight in self._weights.values():
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad.zero_()

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and moments by name; of moments, none before the first step."""
        kept = self._adamw.state
        return {
            f"{kind}.{name}": weight if kind == "weight" else kept[weight][kind]
            for kind in _kinds(self.number)
            for name, weight in self._weights.items()
        }

    def blank(self, number: int) -> dict[str, torch.Tensor]:
        """What `state` gives after `number` steps, all zero: to be written to and loaded."""
        return {
            f"{kind}.{name}": torch.zeros_like(weight)
            for kind in _kinds(number)
            for name, weight in self._weights.items()
        }

    def load(self, state: Mapping[str, torch.Tensor], number: int) -> None:
        """Go on from `state` after `number` steps. Raises ValueError when it is not of such an adapter."""
        blank = self.blank(number)
        if {name: tensor.shape for name, tensor in blank.items()} != {name: t.shape for name, t in state.items()}:
            raise ValueError("it is of another adapter")
        self.number = number
        self._adamw.state.clear()
        for name, weight in self._weights.items():
            weight.copy_(state[f"weight.{name}"])
            if number:
                moments: dict[str, Any] = {m: state[f"{m}.{name}"].to(weight.device, copy=True) for m in MOMENTS}
                self._adamw.state[weight] = {"step": torch.tensor(float(number)), **moments}
        self.clear()
        self._publish()

    def move(self, device: str) -> None:
        """Take everything to a device; a gradient is forgotten."""
        for weight in self._weights.values():
            weight.grad = None
            weight.data = weight.data.to(device)
            for moment in MOMENTS if weight in self._adamw.state else ():
                self._adamw.state[weight][moment] = self._adamw.state[weight][moment].to(device)
        self.clear()

    def _collector(self, name: str) -> Any:
        def collect(parameter: torch.Tensor) -> None:
            total = self._weights[name].grad
            assert total is not None
            total.add_(parameter.grad)  # type: ignore[arg-type]  # it has just been made
            parameter.grad = None

        return collect

    @torch.no_grad()
    def _publish(self) -> None:
        for name, weight in self._adapter.items():
            weight.copy_(self._weights[name])


def _kinds(number: int) -> tuple[str, ...]:
    return ("weight", *MOMENTS) if number else ("weight",)
