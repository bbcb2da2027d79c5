"""How fast the engines are on the requests of a real run: `engine.py RUN`, of `sr collect` with the default model.

The run's conversations are replayed closed-loop, so many at once: what the game said is as recorded, every reply is
sampled anew and has the recorded number of tokens. "bare" is vLLM's own engine in a plain loop: what is lost between it
and "vllm" is lost to the thread and the event loop. Every measurement is a process of its own, the engines by turns.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from collect.engine import Request, Sampling, open_engine
from collect.policy import find_policy
from collect.store import scan

ENGINES = ("transformers", "bare", "vllm")
NEVER: frozenset[int] = frozenset()

Conversation = list[tuple[list[int], int]]  # (token ids of what the game said, length of the reply to it), in order


def conversations(run: Path, most: int) -> list[Conversation]:
    table = (
        scan(run, "trajectories").sort("group_id", "trajectory").head(most).select("token_ids", "policy_mask").collect()
    )
    return [list(turns(*row)) for row in table.iter_rows()]


def turns(token_ids: Sequence[int], policy_mask: Sequence[bool]) -> Iterator[tuple[list[int], int]]:
    said: list[int] = []
    for sampled, pairs in itertools.groupby(zip(policy_mask, token_ids, strict=True), key=lambda pair: pair[0]):
        tokens = [token for _, token in pairs]
        if sampled:
            yield said, len(tokens)
        said = tokens


def measure(engine: str, recorded: list[Conversation], in_flight: int) -> float:
    """Sampled tokens per second."""
    replay = replay_bare if engine == "bare" else replay_engine
    tokens = sum(length for conversation in recorded for _, length in conversation)
    return tokens / replay(engine, recorded, in_flight)


def replay_engine(name: str, recorded: list[Conversation], in_flight: int) -> float:
    engine = open_engine(name, find_policy("SmolLM2-135M-Instruct"))
    waiting = iter(enumerate(recorded))

    async def play() -> None:
        for index, conversation in waiting:
            prompt: list[int] = []
            for turn, (said, length) in enumerate(conversation):
                prompt += said
                sampling = Sampling(0.7, 1.0, length)
                request = Request(str(index), tuple(prompt), NEVER, 1000 * index + turn, sampling)
                prompt += (await engine.generate(request)).token_ids
            engine.release(str(index))

    async def play_all() -> None:
        await asyncio.gather(*(play() for _ in range(in_flight)))

    begun = time.perf_counter()
    asyncio.run(play_all())
    seconds = time.perf_counter() - begun
    engine.close()
    return seconds


def replay_bare(_: str, recorded: list[Conversation], in_flight: int) -> float:
    from collect.engine_vllm import VllmDecoder

    decoder = VllmDecoder(find_policy("SmolLM2-135M-Instruct"))
    decoder.start()
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    engine = decoder._engine
    waiting = iter(enumerate(recorded))
    playing: dict[int, tuple[list[int], Iterator[tuple[list[int], int]]]] = {}

    def ask(index: int) -> None:
        prompt, rest = playing[index]
        turn = next(rest, None)
        if turn is None:
            del playing[index]
            return start()
        prompt += turn[0]
        settings = SamplingParams(
            temperature=0.7, max_tokens=turn[1], ignore_eos=True, logprobs=0, detokenize=False, seed=index,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        engine.add_request(str(index), tokens_input(list(prompt)), settings)
        return None

    def start() -> None:
        following = next(waiting, None)
        if following is not None:
            playing[following[0]] = [], iter(following[1])
            ask(following[0])

    begun = time.perf_counter()
    for _slot in range(in_flight):
        start()
    while engine.has_unfinished_requests():
        for output in engine.step():
            playing[int(output.request_id)][0].extend(output.outputs[0].token_ids)
            ask(int(output.request_id))
    return time.perf_counter() - begun


def in_own_process(engine: str, run: Path, most: int, in_flight: int) -> float:
    command = [sys.executable, __file__, str(run), "--conversations", str(most), "--measure", engine, str(in_flight)]
    result: float = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    recorded = conversations(options.run, options.conversations)
    if options.measure:
        engine, in_flight = options.measure
        print(json.dumps(measure(engine, recorded, int(in_flight))))
        return
    tokens = sum(length for conversation in recorded for _, length in conversation)
    print(f"{len(recorded)} conversations, {tokens} sampled tokens, {options.repeats} repeats; median (least to most)")
    for in_flight in options.in_flight:
        rates: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for _, engine in itertools.product(range(options.repeats), ENGINES):
            rates[engine].append(in_own_process(engine, options.run, options.conversations, in_flight))
        print(f"{in_flight} in flight")
        for engine in ENGINES:
            print(f"  {engine:14}{spread(rates[engine])} tokens/s")
        for numerator, denominator in (("vllm", "transformers"), ("vllm", "bare")):
            ratios = [a / b for a, b in zip(rates[numerator], rates[denominator], strict=True)]
            print(f"  {numerator} / {denominator}: {spread(ratios)}")


def spread(values: list[Any]) -> str:
    return f"{statistics.median(values):8.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
