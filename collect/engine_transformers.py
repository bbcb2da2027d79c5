"""The engine that needs nothing else: a transformers model with continuous batching, for any decoder that it loads.

Every round packs the new tokens of all running requests (a prompt's unseen part, or the one token sampled last) into a
single row without padding, runs the model once over it, and samples one token for each. The linear layers see one long
row; attention is done conversation by conversation by the function below, over keys and values that are kept from turn
to turn until the trajectory is released.

With `deterministic`, a round holds one request only, in fp32, and a prompt's unseen part is always taken whole: what a
conversation computes is then the same, bit for bit, whatever else is running.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from collect.engine import Sampling
from collect.engine_thread import Running
from collect.policy import Policy, load_model

ROUND_TOKENS = 2048  # most new tokens of a round: bounds its memory and how long a decoding request waits for prompts
TOP_P_CANDIDATES = 512  # tokens looked at before a full sort is needed for top-p


class _Blocks:
    """Memory for keys and values, used again and again: fresh blocks for every conversation pile up as fragments.

    A block is (layers, 2, key-value heads, capacity, head size).
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, like: torch.Tensor, tokens: int) -> torch.Tensor:
        """A block for at least `tokens` tokens of keys or values such as `like` (heads, n, size)."""
        capacity = max(512, 1 << (tokens - 1).bit_length())
        if self._free.get(capacity):
            return self._free[capacity].pop()
        shape = (self._layers, 2, like.shape[0], capacity, like.shape[2])
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    def give(self, block: torch.Tensor) -> None:
        """Take a block back."""
        self._free.setdefault(block.shape[3], []).append(block)


class _Memory:
    """The keys and values of one conversation; `tokens` are the token ids that they are of."""

    def __init__(self, blocks: _Blocks) -> None:
        self.tokens: list[int] = []
        self._blocks = blocks
        self._block: torch.Tensor | None = None

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's new keys and values (heads, n, size) after `tokens`; returns all so far, these included."""
        start, end = len(self.tokens), len(self.tokens) + key.shape[1]
        if self._block is None or end > self._block.shape[3]:
            larger = self._blocks.take(key, end)
            if self._block is not None:
                larger[..., :start, :] = self._block[..., :start, :]
                self._blocks.give(self._block)
            self._block = larger
        keys, values = self._block[layer]
        keys[:, start:end], values[:, start:end] = key, value
        return keys[:, :end], values[:, :end]

    def free(self) -> None:
        """Give the block back; the memory is of no use afterwards."""
        if self._block is not None:
            self._blocks.give(self._block)
            self._block = None


@dataclass(frozen=True, eq=False)
class _Turn:
    """What a running request needs: its conversation's memory, the tokens not seen yet, its random numbers."""

    memory: _Memory
    pending: list[int]
    random: np.random.Generator


@dataclass(frozen=True)
class _Segment:
    """One conversation's share of a packed row: its memory, its count of new tokens, their causal mask or None."""

    memory: _Memory
    n: int
    mask: torch.Tensor | None


def _packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    segments: list[_Segment],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention over a packed row, segment by segment."""
    outputs, at = [], 0
    groups = query.shape[1] // key.shape[1]
    for segment in segments:
        rows = slice(at, at + segment.n)
        keys, values = segment.memory.append(module.layer_idx, key[0, :, rows], value[0, :, rows])
        # The query heads that share a key-value head become rows of one product: (kv heads, groups · n, size).
        q = query[0, :, rows].reshape(1, key.shape[1], groups * segment.n, query.shape[3])
        out = scaled_dot_product_attention(q, keys[None], values[None], attn_mask=segment.mask, scale=scaling)
        outputs.append(out.reshape(query.shape[1], segment.n, query.shape[3]))
        at += segment.n
    return torch.cat(outputs, dim=1).transpose(0, 1).unsqueeze(0), None


AttentionInterface.register("packed", _packed_attention)


class TransformersDecoder:
    """See the module's docstring; see `collect.engine_thread.Decoder` for what the methods promise."""

    def __init__(self, policy: Policy, deterministic: bool = False) -> None:
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._dtype = torch.float32 if deterministic else torch.bfloat16
        self._deterministic = deterministic
        self._model = self._load(policy)
        config = self._model.config
        self.context: int = config.max_position_embeddings
        self._heads_per_key = config.num_attention_heads // config.num_key_value_heads
        self._blocks = _Blocks(config.num_hidden_layers)
        self._memories: dict[str, _Memory] = {}
        self._turns: dict[Running, _Turn] = {}
        self._asleep = False

    def start(self) -> None:
        """Leave a core to the games: a thread of the model that waits for one makes all the others spin."""
        if self._device == "cpu":
            torch.set_num_threads(max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0)) - 1)))

    def admit(self, running: Running) -> None:
        """Take up a request where the memory of its conversation ends."""
        if self._asleep:
            self._model.to(self._device)
            self._asleep = False
        request = running.request
        prompt = list(request.prompt)
        memory = self._memories.get(request.trajectory)
        if memory is None or memory.tokens != prompt[: len(memory.tokens)] or len(memory.tokens) == len(prompt):
            self.forget(request.trajectory)
            memory = self._memories[request.trajectory] = _Memory(self._blocks)
        random = np.random.Generator(np.random.Philox(request.seed))
        self._turns[running] = _Turn(memory, prompt[len(memory.tokens) :], random)

    def advance(self, running: Sequence[Running]) -> None:
        """One pass of the model, and one sampled token for each request that took part."""
        batch = self._next_round(running)
        turns = [self._turns[request] for request in batch]
        logits = self._forward(turns)
        uniforms = [turn.random.random() for turn in turns]
        sampled = sample(logits.float(), [request.request.sampling for request in batch], uniforms)
        for request, turn, (token, logprob) in zip(batch, turns, sampled, strict=True):
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            turn.pending[:] = [token]
            if token in request.request.stop:
                request.finish = "stop"
            elif len(request.token_ids) >= request.request.sampling.max_tokens:
                request.finish = "length"
            if request.finish:
                self.drop(request)

    def drop(self, running: Running) -> None:
        """Give a request up; its conversation is kept."""
        self._turns.pop(running, None)

    def forget(self, trajectory: str) -> None:
        """Drop the trajectory's keys and values."""
        memory = self._memories.pop(trajectory, None)
        if memory is not None and all(turn.memory is not memory for turn in self._turns.values()):
            memory.free()

    def adapt(self, policy: Policy) -> None:
        """Load the model anew: that is exact, where merging and unmerging in place would drift in bf16."""
        self._model = self._load(policy)
        self._asleep = False
        for trajectory in list(self._memories):
            self.forget(trajectory)

    def sleep(self) -> None:
        """Move the model to the CPU, and let go of all keys and values."""
        if self._device == "cpu":
            return
        for trajectory in list(self._memories):
            self.forget(trajectory)
        self._blocks = _Blocks(self._model.config.num_hidden_layers)
        self._model.to("cpu")
        self._asleep = True
        torch.cuda.empty_cache()

    def close(self) -> None:
        """Let go of the model; it is freed with the decoder."""
        del self._model

    def _load(self, policy: Policy) -> Any:
        return load_model(policy, self._dtype, self._device, attention="packed")

    def _next_round(self, running: Sequence[Running]) -> Sequence[Running]:
        if self._deterministic:
            return running[:1]
        # Requests with one pending token first: they are cheap, and a long prompt must not hold them up.
        waiting = sorted(running, key=lambda request: len(self._turns[request].pending))
        batch: list[Running] = []
        tokens = 0
        for request in waiting:
            pending = len(self._turns[request].pending)
            if batch and tokens + pending > ROUND_TOKENS:
                break
            batch.append(request)
            tokens += pending
        return batch

    @torch.inference_mode()
    def _forward(self, turns: Sequence[_Turn]) -> torch.Tensor:
        """One pass over the turns' pending tokens; logits (turns, vocabulary) after the last of each."""
        starts = [len(turn.memory.tokens) for turn in turns]
        ids = [token for turn in turns for token in turn.pending]
        positions = [start + i for start, turn in zip(starts, turns, strict=True) for i in range(len(turn.pending))]
        lengths = [len(turn.pending) for turn in turns]
        logits: torch.Tensor = self._model(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(np.cumsum(lengths) - 1, device=self._device),
            segments=[self._segment(turn.memory, n) for turn, n in zip(turns, lengths, strict=True)],
        ).logits[0]
        for turn in turns:
            turn.memory.tokens.extend(turn.pending)
        return logits

    def _segment(self, memory: _Memory, n: int) -> _Segment:
        if n == 1:
            return _Segment(memory, n, None)
        total = len(memory.tokens) + n
        mask = torch.full((n, total), float("-inf"), dtype=self._dtype, device=self._device).triu(total - n + 1)
        return _Segment(memory, n, mask.repeat(self._heads_per_key, 1))


def sample(logits: torch.Tensor, samplings: list[Sampling], uniforms: list[float]) -> list[tuple[int, float]]:
    """Sample one token a row by inverting the cumulative distribution at the row's uniform number in [0, 1).

    Args:
        logits: (rows, vocabulary), fp32.
        samplings: one a row.
        uniforms: one a row.

    Returns:
        One (token id, log-probability under the distribution sampled from) a row.
    """
    temperatures = torch.tensor([s.temperature or 1.0 for s in samplings], device=logits.device)
    logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    results = []
    for row, sampling, uniform in zip(logprobs, samplings, uniforms, strict=True):
        if sampling.temperature == 0:
            best = int(row.argmax())
            results.append((best, float(row[best])))
            continue
        kept, tokens = (row, None) if sampling.top_p == 1 else _nucleus(row, sampling.top_p)
        cumulative = kept.double().exp().cumsum(0)
        index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True).clamp(max=len(kept) - 1))
        token = index if tokens is None else int(tokens[index])
        mass = 0.0 if tokens is None else float(cumulative[-1].log())
        results.append((token, float(kept[index]) - mass))
    return results


def _nucleus(row: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely tokens, as few as reach a mass of `top_p` together: their log-probabilities and ids."""
    for size in (min(TOP_P_CANDIDATES, len(row)), len(row)):
        values, tokens = row.topk(size)
        before = values.double().exp().cumsum(0) - values.double().exp()
        if float(before[-1]) >= top_p or size == len(row):
            break
    kept = int((before < top_p).sum())
    return values[:kept], tokens[:kept]
