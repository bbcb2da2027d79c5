"""Trajectories packed into rows for one forward pass each.

A pack is a single row of tokens without padding: the linear layers, which are nearly all of the work, see one long row,
and attention is done trajectory by trajectory with PyTorch's own causal kernel, so none sees another. Padding would
waste what the shorter ones lack: lengths in a batch differ by a factor of two and more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from train.batch import Example

ATTENTION = "packed_trajectories"  # the name under which transformers knows the attention below


@dataclass(frozen=True, eq=False)
class Pack:
    """Some trajectories in one row.

    `lengths` are their shares of the row. The other tensors have one entry a sampled token: `before` is its
    predecessor's place in the row, `targets` its id, `sampled` the sampler's log-probability, `advantages` those of its
    trajectory.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    lengths: list[int]
    before: torch.Tensor
    targets: torch.Tensor
    sampled: torch.Tensor
    advantages: torch.Tensor


def forwarded(example: Example) -> int:
    """How many tokens of it a forward pass must see: all that come before its last sampled one. 0 if it has none."""
    return max((i for i, sampled in enumerate(example.policy_mask) if sampled), default=0)


def shares(lengths: Sequence[int], among: int) -> list[list[int]]:
    """Split items over `among` workers so that the sums of their lengths are near each other: indices, ascending.

    Longest first, each to the worker with the least so far.
    """
    loads: list[tuple[int, list[int]]] = [(0, []) for _ in range(among)]
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        least = min(range(among), key=lambda worker: loads[worker][0])
        load, items = loads[least]
        loads[least] = load + lengths[index], [*items, index]
    return [sorted(items) for _, items in loads]


def packs(examples: Sequence[Example], budget: int, device: str) -> Iterator[Pack]:
    """Pack the examples, in order, into rows of at most `budget` tokens; a longer one has a row to itself."""
    row: list[Example] = []
    tokens = 0
    for example in examples:
        length = forwarded(example)
        if row and tokens + length > budget:
            yield _pack(row, device)
            row, tokens = [], 0
        row.append(example)
        tokens += length
    if row:
        yield _pack(row, device)


def _pack(examples: Sequence[Example], device: str) -> Pack:
    ids: list[int] = []
    positions: list[int] = []
    lengths: list[int] = []
    before: list[int] = []
    targets: list[int] = []
    advantages: list[float] = []
    for example in examples:
        length, start = forwarded(example), len(ids)
        said = [i for i, sampled in enumerate(example.policy_mask) if sampled]
        before += [start + i - 1 for i in said]
        targets += [example.token_ids[i] for i in said]
        advantages += [example.advantage] * len(said)
        ids += example.token_ids[:length]
        positions += range(length)
        lengths.append(length)
    sampled = [logprob for example in examples for logprob in example.logprobs]
    return Pack(
        token_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        lengths=lengths,
        before=torch.tensor(before, device=device),
        targets=torch.tensor(targets, device=device),
        sampled=torch.tensor(sampled, dtype=torch.float32, device=device),
        advantages=torch.tensor(advantages, dtype=torch.float32, device=device),
    )


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    lengths: list[int],
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each trajectory of a row; queries, keys and values are (1, heads, tokens, size)."""
    outputs = []
    for q, k, v in zip(*(torch.split(x, lengths, dim=2) for x in (query, key, value)), strict=True):
        mask = _window(q.shape[2], sliding_window, q.device)
        grouped = q.shape[1] != k.shape[1]
        outputs.append(
            scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped)
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _window(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """A mask for layers that look back at most `window` tokens, where that is less than the length."""
    if window is None or length <= window:
        return None
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)


AttentionInterface.register(ATTENTION, _attention)
