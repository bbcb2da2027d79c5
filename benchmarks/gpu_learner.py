"""The learner's update on a GPU: `gpu_learner.py`, under six minutes. `--tiny` only checks that the script runs.

A random model in the shape of Qwen2.5-7B, in bf16 with LoRA of rank 16 on all linear layers, learns from made-up
trajectories of 30 steps and about 1,200 tokens, of which the policy sampled a fifth. Printed: tokens per second, peak
memory, and what the arithmetic of the update comes to as a share of the card's rate at multiplying large bf16 matrices,
measured here. That arithmetic is what the update must do, plus the forward pass that gradient checkpointing repeats.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from collect.policy import Policy
from train.batch import Example
from train.layout import find_layout
from train.learner import Learner, LearnerSettings
from train.packing import forwarded

RANK = 16
STEPS, READ, SAID = 30, (26, 38), (5, 11)  # steps of a trajectory; tokens read and sampled in a step, least and most


@dataclass(frozen=True)
class Size:
    """A shape of model, how many trajectories, how many tokens at once, and the matrices that are multiplied."""

    config: Qwen2Config
    trajectories: int
    micro_batches: tuple[int, ...]
    matrix: int


def full() -> Size:
    config = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        max_position_embeddings=32768,
    )
    return Size(config, trajectories=64, micro_batches=(4096, 16384), matrix=8192)


def tiny() -> Size:
    config = Qwen2Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1000,
    )
    return Size(config, trajectories=4, micro_batches=(2048,), matrix=256)


def make_batch(count: int, vocabulary: int) -> list[Example]:
    rng = random.Random(0)
    return [make_example(rng, vocabulary, 1.0 if number % 2 else -1.0) for number in range(count)]


def make_example(rng: random.Random, vocabulary: int, advantage: float) -> Example:
    mask: list[bool] = []
    for _ in range(STEPS):
        mask += [False] * rng.randint(*READ) + [True] * rng.randint(*SAID)
    ids = tuple(rng.randrange(vocabulary) for _ in mask)
    return Example("made-up", ids, tuple(mask), (-1.0,) * sum(mask), advantage)


def operations(config: Qwen2Config, batch: Sequence[Example], *, checkpointing: bool) -> float:
    """Multiplications and additions of one update. The base is frozen: its weights have no gradient to compute."""
    size, heads, layers = config.hidden_size, config.num_attention_heads, config.num_hidden_layers
    keys = size // heads * config.num_key_value_heads
    wide = config.intermediate_size
    linear = layers * (2 * size * size + 2 * size * keys + 3 * size * wide)
    lora = layers * RANK * (4 * size + 2 * (size + keys) + 3 * (size + wide))
    lengths = [forwarded(example) for example in batch]
    tokens, sampled = sum(lengths), sum(len(example.logprobs) for example in batch)
    forward = 2 * tokens * (linear + lora) + layers * sum(2 * n * n * size for n in lengths)
    backward = 2 * tokens * (linear + 2 * lora) + 2.5 * layers * sum(2 * n * n * size for n in lengths)
    head = 3 * 2 * sampled * size * config.vocab_size  # forward, again, and backward
    total: float = forward * (2 if checkpointing else 1) + backward + head
    return total


def matrix_rate(size: int, device: str) -> float:
    """Operations per second on square matrices, the median of 20 products."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = [timed(lambda: a @ b, device) for _ in range(20)]
    return 2 * float(size) ** 3 / statistics.median(seconds)


def timed(work: Callable[[], Any], device: str) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model, to check the script on any machine")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    size, device = tiny() if options.tiny else full(), find_layout().device
    if device == "cpu" and not options.tiny:
        parser.error("there is no GPU; --tiny checks the script")
    print(torch.cuda.get_device_name(device) if device != "cpu" else "CPU", flush=True)
    rate = matrix_rate(size.matrix, device)
    print(f"bf16 matrices of {size.matrix}: {rate / 1e12:.1f} Tflop/s, median of 20", flush=True)
    batch = make_batch(size.trajectories, size.config.vocab_size)
    tokens = sum(map(forwarded, batch))
    print(f"{len(batch)} trajectories, {tokens} tokens, {options.repeats} updates each; median (least to most)")
    with tempfile.TemporaryDirectory() as folder:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(size.config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
        del model
        for checkpointing in (True, False):
            for budget in size.micro_batches:
                measure(Path(folder), size.config, batch, rate, budget, options.repeats, checkpointing=checkpointing)


def measure(
    folder: Path,
    config: Qwen2Config,
    batch: Sequence[Example],
    rate: float,
    budget: int,
    repeats: int,
    *,
    checkpointing: bool,
) -> None:
    settings = LearnerSettings(
        temperature=0.7, rank=RANK, micro_batch_tokens=budget, gradient_checkpointing=checkpointing
    )
    label = f"rows of {budget} tokens, {'with' if checkpointing else 'without'} gradient checkpointing"
    device = find_layout().device
    learner = Learner(Policy("random", str(folder)), settings)
    try:
        learner.update(batch)
        updates = [learner.update(batch) for _ in range(repeats)]
    except torch.OutOfMemoryError:
        print(f"{label}: does not fit")
        return
    finally:
        asleep, awake = timed(learner.sleep, device), timed(learner.wake, device)
        learner.close()
    tokens = updates[0].tokens_forwarded
    speeds = [tokens / update.seconds for update in updates]
    shares = [operations(config, batch, checkpointing=checkpointing) / update.seconds / rate for update in updates]
    memory = max(update.peak_memory for update in updates) / 2**30
    print(
        f"{label}: {statistics.median(speeds):.0f} ({min(speeds):.0f} to {max(speeds):.0f}) tokens/s, "
        f"{statistics.median(shares):.0%} of the matrix rate, at most {memory:.1f} GiB, "
        f"asleep in {asleep:.1f} s, awake in {awake:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
