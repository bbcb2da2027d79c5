"""How fast the learner's update is: `learner.py RUN`, of `sr collect` with the default model.

Trajectories of the run are learned from, with advantages made up. "bare" is a forward and backward pass over the same
rows by the same model with nothing around it: all logits of the sampled tokens at once, cross-entropy, no importance
weights, no gradients in fp32, no optimizer. What is lost between it and "update" is lost to the learner. "one by one"
is the plain way: each trajectory by itself through transformers' own attention.

The tokens that an update forwards are counted too, against one forward pass for every step of every trajectory, as the
paper's trainer has it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from collect.policy import find_policy
from collect.trajectory import Trajectory
from train.adapter import load_adapted
from train.batch import Example
from train.frozen import stored_groups
from train.layout import find_layout
from train.learner import Learner, LearnerSettings
from train.packing import forwarded, packs

THREAD = ThreadPoolExecutor(1, initializer=torch.set_flush_denormal, initargs=(True,))  # as the learner's own is
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def examples(trajectories: Sequence[Trajectory]) -> list[Example]:
    return [
        Example(str(number), t.token_ids, t.policy_mask, t.logprobs, 1.0 if number % 2 else -1.0)
        for number, t in enumerate(trajectories)
    ]


def passes_by_step(trajectories: Sequence[Trajectory]) -> int:
    """Tokens of one forward pass for every step: all that came before it, and the reply."""
    return sum(step.prompt_tokens + step.reply_tokens for t in trajectories for step in t.steps)


def bare(model: Any, batch: Sequence[Example], budget: int, device: str) -> None:
    for pack in packs(batch, budget, device):
        logits = model(
            input_ids=pack.token_ids,
            position_ids=pack.position_ids,
            lengths=pack.lengths,
            logits_to_keep=pack.before,
            use_cache=False,
        ).logits[0]
        backward(logits, pack.targets)


def one_by_one(model: Any, batch: Sequence[Example], budget: int, device: str) -> None:
    for pack in packs(batch, 1, device):
        logits = model(input_ids=pack.token_ids, logits_to_keep=pack.before, use_cache=False).logits[0]
        backward(logits, pack.targets)


def backward(logits: torch.Tensor, targets: torch.Tensor) -> None:
    cross_entropy(logits.float(), targets, reduction="sum").backward()  # type: ignore[no-untyped-call]


def timed(work: Callable[[], Any], device: str) -> float:
    began = time.perf_counter()
    THREAD.submit(work).result()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):9.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--trajectories", type=int, default=8, help="trajectories of the run in a batch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro-batch-tokens", type=int, default=2048)
    parser.add_argument("--dtype", choices=list(TYPES), default="bf16")
    options = parser.parse_args()

    everything = [trajectory for group in stored_groups(options.run) for trajectory in group.trajectories]
    longest = max(len(t.steps) for t in everything)
    for label, chosen in (
        ("all", everything),
        (f"of {longest} steps", [t for t in everything if len(t.steps) == longest]),
    ):
        ratios = [passes_by_step([t]) / forwarded(e) for t, e in zip(chosen, examples(chosen), strict=True) if t.steps]
        whole = passes_by_step(chosen) / sum(map(forwarded, examples(chosen)))
        print(
            f"tokens, one pass a step / one pass a trajectory, {len(chosen)} trajectories {label}: {whole:.1f}", end=""
        )
        print(f"; a trajectory {spread(ratios)}")

    batch = examples(everything[: options.trajectories])
    tokens = sum(map(forwarded, batch))
    policy, device = find_policy("SmolLM2-135M-Instruct"), find_layout().device
    learner = Learner(
        policy,
        LearnerSettings(temperature=0.7, micro_batch_tokens=options.micro_batch_tokens, dtype=options.dtype),
    )

    def load() -> Any:
        shape: dict[str, Any] = {"rank": None, "alpha": None, "target_modules": None, "seed": 0}
        return load_adapted(policy, TYPES[options.dtype], device, **shape).get_base_model()

    packed, plain = load(), load()
    plain.set_attn_implementation("sdpa")
    ways = {
        "update": lambda: learner.update(batch),
        "bare": lambda: bare(packed, batch, options.micro_batch_tokens, device),
        "one by one": lambda: one_by_one(plain, batch, options.micro_batch_tokens, device),
    }
    for work in ways.values():
        timed(work, device)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way, work in ways.items():  # by turns, so that what else the machine does is shared out
            rates[way].append(tokens / timed(work, device))
    print(f"{len(batch)} trajectories, {tokens} tokens, {options.dtype}, {options.repeats} repeats, by turns")
    for way, measured in rates.items():
        print(f"  {way:12}{spread(measured)} tokens/s")
    for other in ("bare", "one by one"):
        ratios = [a / b for a, b in zip(rates["update"], rates[other], strict=True)]
        print(f"  update / {other}: {spread(ratios)}")


if __name__ == "__main__":
    main()
