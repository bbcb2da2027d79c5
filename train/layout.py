"""Where the learner works, and the other processes that may work with it.

| machine | engine | learner |
| --- | --- | --- |
| CPU | CPU | CPU |
| one GPU | cuda:0 | cuda:0, which it leaves while the engine samples |
| more GPUs than learners | cuda:0 | cuda:1 and on |
| N learners on N GPUs | cuda:0 | cuda:0 to cuda:N-1; the first leaves its GPU while the engine samples |

N learners are N processes under torchrun. The first one samples and decides; the others follow it. Each has the whole
model, does its share of a batch, and takes the same step on the summed gradient.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.distributed.rendezvous import rendezvous

from collect.errors import InputError

_dist: Any = torch.distributed  # it does not say all that it has
PATIENCE = timedelta(days=7)  # those that follow wait while the first one samples


@dataclass(frozen=True, slots=True)
class Layout:
    """This process's device; whether it shares it with the engine; its number among how many learners."""

    device: str
    shared: bool
    rank: int = 0
    learners: int = 1


def find_layout(gpus: int | None = None, environment: Mapping[str, str] = os.environ) -> Layout:
    """The layout that this machine's GPUs and torchrun's environment variables ask for.

    Raises:
        InputError: there are fewer GPUs than learners on this machine.
    """
    gpus = torch.cuda.device_count() if gpus is None else gpus
    rank, learners = int(environment.get("RANK", 0)), int(environment.get("WORLD_SIZE", 1))
    local, here = int(environment.get("LOCAL_RANK", 0)), int(environment.get("LOCAL_WORLD_SIZE", 1))
    if gpus == 0:
        return Layout("cpu", False, rank, learners)
    if here > gpus:
        raise InputError(f"torchrun --nproc-per-node {here}: this machine has {gpus} GPUs; start at most {gpus}")
    first = 1 if gpus > here else 0
    return Layout(f"cuda:{first + local}", first == 0 and rank == 0, rank, learners)


class Peers:
    """The learners together. With one learner every method does nothing, or returns what it was given.

    They meet in process groups of their own and not in PyTorch's default one: an engine in the first process would take
    that for its own, and wait in it for processes that know nothing of engines.
    """

    def __init__(self, layout: Layout) -> None:
        """Meet the others, as torchrun arranges."""
        self.rank, self.count = layout.rank, layout.learners
        self._messages: Any = None
        self._gradients: Any = None
        if self.count > 1:
            store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
            # Messages go between CPUs, gradients between devices.
            self._messages = _dist.ProcessGroupGloo(_dist.PrefixStore("messages", store), rank, count, PATIENCE)
            self._gradients = self._messages
            if layout.device != "cpu":
                self._gradients = _dist.ProcessGroupNCCL(_dist.PrefixStore("gradients", store), rank, count, PATIENCE)

    def tell(self, message: Any) -> None:
        """From the first: hand all others a message made of JSON values."""
        if self.count > 1:
            text = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
            self._messages.broadcast(torch.tensor([len(text)]), 0).wait()
            self._messages.broadcast(text, 0).wait()

    def hear(self) -> Any:
        """From the others: wait for the first one's next message."""
        length = torch.zeros(1, dtype=torch.int64)
        self._messages.broadcast(length, 0).wait()
        text = torch.empty(int(length), dtype=torch.uint8)
        self._messages.broadcast(text, 0).wait()
        return json.loads(text.numpy().tobytes())

    def add(self, tensors: list[torch.Tensor]) -> None:
        """Put in the place of these tensors, of one type, their sums over all learners: the same bits everywhere."""
        if self.count > 1:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self._gradients.allreduce(flat).wait()
            for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def spread(self, tensors: list[torch.Tensor]) -> None:
        """Put in the place of these tensors those of the first learner."""
        if self.count > 1:
            for tensor in tensors:
                self._gradients.broadcast(tensor, 0).wait()

    def part(self) -> None:
        """Leave the others."""
        self._messages = self._gradients = None
