"""Whether adapters pile up: memory and disk over many swaps, as a training run makes them.

    python benchmarks/swaps.py 200 [--engine vllm] [--model FOLDER]

Each swap is an iteration without rollouts and without an update: the learner saves its adapter, the engine goes over to
it and answers one request, the checkpoint is written, and what is no longer needed is deleted. The baseline is the
memory after the first 20.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil

from collect.engine import Engine, Request, Sampling, open_engine
from collect.policy import Policy, find_policy, load_tokenizer
from train import checkpoint
from train.checkpoint import Progress
from train.gating import Gating
from train.learner import Learner, LearnerSettings
from train.loop import prune

SETTLED = 20
MEGABYTE = 1 << 20


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("swaps", type=int)
    arguments.add_argument("--engine", default="transformers")
    arguments.add_argument("--model", default=None)
    asked = arguments.parse_args()
    policy = find_policy(asked.model)
    learner = Learner(policy, LearnerSettings(temperature=0.7))
    engine = open_engine(asked.engine, policy)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(swap(asked.swaps, Path(folder), policy, learner, engine))
    engine.close()
    learner.close()


async def swap(swaps: int, run: Path, policy: Policy, learner: Learner, engine: Engine) -> None:
    tokenizer = load_tokenizer(policy)
    prompt = tuple(tokenizer("You are in the middle of a room.")["input_ids"])
    seconds, memory, disk = [], [], []
    for iteration in range(1, swaps + 1):
        adapter = run / "adapters" / f"{iteration:06d}"
        adapter.parent.mkdir(exist_ok=True)
        learner.save_adapter(adapter)
        begun = time.perf_counter()
        await engine.set_adapter(replace(policy, adapter=adapter, version=iteration))
        seconds.append(time.perf_counter() - begun)
        await engine.generate(Request("t", prompt, frozenset({-1}), iteration, Sampling(max_tokens=4)))
        engine.release("t")
        checkpoint.save(run, Progress(iteration, Gating("off", 0.9), f"adapters/{adapter.name}"), learner)
        prune(run, kept={adapter.name})
        memory.append(psutil.Process(os.getpid()).memory_info().rss / MEGABYTE)
        disk.append(sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) / MEGABYTE)
    settled = min(SETTLED, swaps)
    rest = memory[settled:] or memory
    print(
        f"swaps: {swaps}; one takes {statistics.median(seconds):.2f} s "
        f"(median; {min(seconds):.2f} to {max(seconds):.2f})"
    )
    print(
        f"memory: {memory[settled - 1]:.0f} MiB after {settled}; afterwards {min(rest):.0f} to {max(rest):.0f} MiB, "
        f"{rest[-1]:.0f} at the end ({rest[-1] / memory[settled - 1]:.3f} of the baseline)"
    )
    print(f"disk: {disk[0]:.1f} MiB after 1, {disk[-1]:.1f} at the end, at most {max(disk):.1f}")


if __name__ == "__main__":
    main()
