"""The in-process engine: a transformers model with continuous batching, for any decoder that transformers loads.

One thread owns the model. In every round it takes all requests that are running, packs their new tokens (a prompt's
unseen part, or the one token sampled last) into a single row without padding, runs the model once over it, and samples
one token for each. The linear layers see one long row; attention is done conversation by conversation by the function
below, over keys and values that are kept from turn to turn until the trajectory is released.

With `deterministic`, a round holds one request only, in fp32, and a prompt's unseen part is always taken whole: what a
conversation computes is then the same, bit for bit, whatever else is running.
"""

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from collect.engine import Completion, Request, Sampling
from collect.errors import EngineFault
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


@dataclass(eq=False)
class _Running:
    """A request being answered: `pending` are the token ids that the model has not seen yet."""

    request: Request
    future: "Future[Completion]"
    memory: _Memory
    pending: list[int]
    random: np.random.Generator
    aborted: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


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


def _answer() -> "Future[Any]":
    """A future that its asker can stop waiting for but not cancel: the engine's thread may always answer it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class TransformersEngine:
    """See the module's docstring; see `collect.engine.Engine` for what the methods promise."""

    def __init__(self, policy: Policy, deterministic: bool = False) -> None:
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        if self._device == "cpu":
            # The games need a core too; a thread of the model that waits for one makes all the others spin.
            torch.set_num_threads(max(1, min(torch.get_num_threads(), len(os.sched_getaffinity(0)) - 1)))
        self._dtype = torch.float32 if deterministic else torch.bfloat16
        self._deterministic = deterministic
        self._model = self._load(policy)
        config = self._model.config
        self.context: int = config.max_position_embeddings
        self._heads_per_key = config.num_attention_heads // config.num_key_value_heads
        self._blocks = _Blocks(config.num_hidden_layers)
        self._memories: dict[str, _Memory] = {}
        self._running: list[_Running] = []
        self._inbox: deque[_Running] = deque()
        self._adapters: deque[tuple[Policy, Future[None]]] = deque()
        self._released: deque[str] = deque()
        self._closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: Request) -> Completion:
        """Sample one reply; see `Engine.generate`."""
        if len(request.prompt) + request.sampling.max_tokens > self.context:
            raise EngineFault(
                f"a prompt of {len(request.prompt)} tokens leaves no room for {request.sampling.max_tokens} more "
                f"in a context of {self.context}"
            )
        random = np.random.Generator(np.random.Philox(request.seed))
        running = _Running(request, _answer(), _Memory(self._blocks), [], random)
        with self._wake:
            if self._closing:
                raise EngineFault("the engine is closed")
            self._inbox.append(running)
            self._wake.notify()
        try:
            return await asyncio.wrap_future(running.future)
        except asyncio.CancelledError:
            self.abort(request.trajectory)
            raise

    def abort(self, trajectory: str) -> None:
        """End the trajectory's request; see `Engine.abort`."""
        with self._wake:
            # The requests that are there now: a later one of the same trajectory is not meant.
            for running in [*self._running, *self._inbox]:
                running.aborted |= running.request.trajectory == trajectory
            self._wake.notify()

    def release(self, trajectory: str) -> None:
        """Drop the trajectory's keys and values."""
        with self._wake:
            self._released.append(trajectory)
            self._wake.notify()

    async def set_adapter(self, policy: Policy) -> None:
        """Go over to another adapter; see `Engine.set_adapter`."""
        done: Future[None] = _answer()
        with self._wake:
            if self._closing:
                raise EngineFault("the engine is closed")
            self._adapters.append((policy, done))
            self._wake.notify()
        await asyncio.wrap_future(done)

    def close(self) -> None:
        """Stop the thread; running requests fail."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _load(self, policy: Policy) -> Any:
        return load_model(policy, self._dtype, self._device, attention="packed")

    def _work(self) -> None:
        while self._take_orders():
            batch = self._next_round()
            try:
                self._advance(batch)
            except Exception as error:  # a request must never wait for ever: whatever went wrong is its answer
                for running in batch:
                    self._finish(running, EngineFault(f"{type(error).__name__}: {error}"))
        for running in [*self._running, *self._inbox]:
            self._finish(running, EngineFault("the engine was closed"))
        for _, done in self._adapters:
            done.set_exception(EngineFault("the engine was closed"))

    def _take_orders(self) -> bool:
        """Wait for work and take in what was asked since the last round; False when closing."""
        with self._wake:
            while not (self._closing or self._running or self._inbox or self._adapters or self._released):
                self._wake.wait()
            if self._closing:
                return False
            while self._released:
                self._forget(self._released.popleft())
            # A new adapter waits for running requests, and later requests wait for the adapter.
            while self._inbox and not self._adapters:
                self._admit(self._inbox.popleft())
            for running in [running for running in self._running if running.aborted]:
                self._complete(running, "aborted")
            adapter = self._adapters.popleft() if self._adapters and not self._running else None
        if adapter is not None:
            self._swap(*adapter)
        return True

    def _admit(self, running: _Running) -> None:
        """Take up a request where the memory of its conversation ends."""
        prompt = list(running.request.prompt)
        memory = self._memories.get(running.request.trajectory)
        if memory is None or memory.tokens != prompt[: len(memory.tokens)] or len(memory.tokens) == len(prompt):
            self._forget(running.request.trajectory)
            memory = self._memories[running.request.trajectory] = _Memory(self._blocks)
        running.memory, running.pending = memory, prompt[len(memory.tokens) :]
        self._running.append(running)

    def _forget(self, trajectory: str) -> None:
        memory = self._memories.pop(trajectory, None)
        if memory is not None and all(running.memory is not memory for running in self._running):
            memory.free()

    def _swap(self, policy: Policy, done: "Future[None]") -> None:
        try:
            # Reloading from disk is exact; merging and unmerging in place would drift in bf16.
            self._model = self._load(policy)
            for trajectory in list(self._memories):
                self._forget(trajectory)
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def _next_round(self) -> list[_Running]:
        if self._deterministic:
            return self._running[:1]
        # Requests with one pending token first: they are cheap, and a long prompt must not hold them up.
        waiting = sorted(self._running, key=lambda running: len(running.pending))
        batch: list[_Running] = []
        tokens = 0
        for running in waiting:
            if batch and tokens + len(running.pending) > ROUND_TOKENS:
                break
            batch.append(running)
            tokens += len(running.pending)
        return batch

    @torch.inference_mode()
    def _advance(self, batch: list[_Running]) -> None:
        """One pass of the model over the batch's pending tokens, and one sampled token for each request."""
        if not batch:
            return
        starts = [len(running.memory.tokens) for running in batch]
        ids = [token for running in batch for token in running.pending]
        positions = [s + i for s, running in zip(starts, batch, strict=True) for i in range(len(running.pending))]
        lengths = [len(running.pending) for running in batch]
        logits = self._model(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(np.cumsum(lengths) - 1, device=self._device),
            segments=[self._segment(running.memory, n) for running, n in zip(batch, lengths, strict=True)],
        ).logits[0]
        for running in batch:
            running.memory.tokens.extend(running.pending)
        uniforms = [running.random.random() for running in batch]
        sampled = sample(logits.float(), [running.request.sampling for running in batch], uniforms)
        for running, (token, logprob) in zip(batch, sampled, strict=True):
            running.token_ids.append(token)
            running.logprobs.append(logprob)
            running.pending = [token]
            if token in running.request.stop:
                self._complete(running, "stop")
            elif len(running.token_ids) >= running.request.sampling.max_tokens:
                self._complete(running, "length")

    def _segment(self, memory: _Memory, n: int) -> _Segment:
        if n == 1:
            return _Segment(memory, n, None)
        total = len(memory.tokens) + n
        mask = torch.full((n, total), float("-inf"), dtype=self._dtype, device=self._device).triu(total - n + 1)
        return _Segment(memory, n, mask.repeat(self._heads_per_key, 1))

    def _complete(self, running: _Running, finish: Any) -> None:
        self._finish(running, Completion(tuple(running.token_ids), tuple(running.logprobs), finish))

    def _finish(self, running: _Running, answer: Completion | EngineFault) -> None:
        if running in self._running:
            self._running.remove(running)
        if isinstance(answer, EngineFault):
            self._forget(running.request.trajectory)
        if isinstance(answer, EngineFault):
            running.future.set_exception(answer)
        else:
            running.future.set_result(answer)


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
