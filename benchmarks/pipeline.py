"""A collect run on vLLM against the loop that it replaces, and where its time goes: `pipeline.py GAMES [GROUPS]`.

The baseline is the usual loop: one group after another, in lock step. All G trajectories ask for a reply, the slowest
is waited for, then their games take a step one after the other. It is run over TextWorld itself and over the compiled
games. "collect" is `sr collect`'s own loop with its store, so many groups in flight. Every loop plays the same groups
with the default small model, in a process of its own; what loads the model is not counted, what loads games is, with
their translations in the cache.

"bare" replays the conversations of that collect run on vLLM's own engine in a plain loop, as many in flight: what the
engine alone would need.

The profile is of the collect run: what share of the time the engine's thread worked, and what the event loop did
besides: the games, text to tokens and back, matching commands, the store.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import conversations, replay_bare

from collect.collection import Collection, choose_games, collect
from collect.engine import Engine, Request, Sampling, derive_seed, open_engine
from collect.environment import Environments, Observation, open_environments
from collect.policy import find_policy, load_tokenizer
from collect.prompt import Prompt, match_command
from collect.rollout import Task

LOOPS = ("lock-step, TextWorld", "lock-step, compiled", "collect", "bare")
GROUP_SIZE, HORIZON, SAMPLING = 8, 30, Sampling(0.7, 1.0, 24)

Timed = dict[str, float]  # seconds by what was done


def collection(games: str, groups: int) -> Collection:
    policy = find_policy("SmolLM2-135M-Instruct")
    return Collection(
        policy, "vllm", games, groups, 1, GROUP_SIZE, HORIZON, SAMPLING, "act", False, seed=0, deterministic=False
    )


def timed(timers: Timed, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def measured(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            timers[name] += time.perf_counter() - begun

    return measured


def instrument(timers: Timed, engine: Any) -> None:
    """Have the parts of a collect run add up their time; what they do stays what it is."""
    import collect.rollout as rollout
    from collect.compiled import CompiledGame, CompiledInstance
    from collect.store import RunWriter

    decoder = engine._decoder
    for method in ("advance", "admit"):
        setattr(decoder, method, timed(timers, "engine", getattr(decoder, method)))
    parts: dict[str, list[tuple[Any, str]]] = {
        "games": [(CompiledInstance, "step"), (CompiledInstance, "reset"), (CompiledGame, "__init__")],
        "tokens": [(Prompt, "opening"), (Prompt, "turn"), (Prompt, "text")],
        "matching": [(rollout, "match_command")],
        "store": [(RunWriter, "flush")],
    }
    for name, methods in parts.items():
        for owner, method in methods:
            setattr(owner, method, timed(timers, name, getattr(owner, method)))


def run_collect(games: str, groups: int, in_flight: int, out: Path) -> tuple[int, float, Timed]:
    asked = collection(games, groups)
    timers: Timed = defaultdict(float)
    engine = open_engine("vllm", asked.policy)
    instrument(timers, engine)
    tasks = asked.tasks(choose_games(games)[0])
    environments = open_environments("compiled", print)
    tokenizer = load_tokenizer(asked.policy)
    begun = time.perf_counter()
    tally = collect(asked, tasks, engine, environments, tokenizer, out, in_flight, lambda _: None)
    seconds = time.perf_counter() - begun
    engine.close()
    return tally.tokens, seconds, timers


def run_lock_step(games: str, groups: int, environment: str) -> tuple[int, float, Timed]:
    asked = collection(games, groups)
    engine = open_engine("vllm", asked.policy)
    prompt = Prompt(load_tokenizer(asked.policy), "act", show_commands=False)
    tasks = asked.tasks(choose_games(games)[0])
    environments = open_environments(environment, print)

    async def all_groups() -> int:
        return sum([await lock_step(task, engine, environments, prompt) for task in tasks])

    begun = time.perf_counter()
    tokens = asyncio.run(all_groups())
    seconds = time.perf_counter() - begun
    engine.close()
    return tokens, seconds, {}


async def lock_step(task: Task, engine: Engine, environments: Environments, prompt: Prompt) -> int:
    """One group; the tokens that it sampled."""
    sampled = 0
    async with environments.open(task.game.path, GROUP_SIZE) as environment:
        observations: dict[int, Observation] = {i: await environment.reset(i) for i in range(GROUP_SIZE)}
        ids = {i: prompt.opening(said.text, ()) for i, said in observations.items()}
        for step in range(1, HORIZON + 1):
            running = [i for i, said in observations.items() if not said.done]
            requests = (
                Request(
                    f"{task.group_id}/{i}", tuple(ids[i]), prompt.stop, derive_seed(task.group_id, i, step), SAMPLING
                )
                for i in running
            )
            replies = await asyncio.gather(*(engine.generate(request) for request in requests))
            for i, reply in zip(running, replies, strict=True):
                sampled += len(reply.token_ids)
                asked = prompt.command(prompt.text(reply.token_ids))
                command, _ = match_command(asked, observations[i].admissible_commands)
                observations[i] = await environment.step(i, command)
                ids[i] += [*reply.token_ids, *prompt.turn(reply.token_ids, observations[i].text, ())]
    return sampled


def run_bare(run: Path, in_flight: int) -> tuple[int, float, Timed]:
    recorded = conversations(run, 10**9)
    tokens = sum(length for conversation in recorded for _, length in conversation)
    return tokens, replay_bare("bare", recorded, in_flight * GROUP_SIZE), {}


def measure(loop: str, games: str, groups: int, in_flight: int, out: Path) -> tuple[int, float, Timed]:
    if loop == "collect":
        return run_collect(games, groups, in_flight, out)
    if loop == "bare":
        return run_bare(out, in_flight)
    return run_lock_step(games, groups, "stock" if loop.endswith("TextWorld") else "compiled")


def in_own_process(loop: str, options: argparse.Namespace, out: Path) -> tuple[int, float, Timed]:
    command = [sys.executable, __file__, options.games, str(options.groups), "--in-flight", str(options.in_flight)]
    output = subprocess.run([*command, "--measure", loop, str(out)], check=True, stdout=subprocess.PIPE).stdout
    tokens, seconds, timers = json.loads(output.splitlines()[-1])
    return tokens, seconds, timers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games")
    parser.add_argument("groups", type=int, nargs="?", default=16)
    parser.add_argument("--in-flight", type=int, default=4, help="groups in flight in collect")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--measure", nargs=2, metavar=("LOOP", "RUN"), help="this loop alone, in this process: tokens, seconds, timers"
    )
    options = parser.parse_args()
    if options.measure:
        loop, out = options.measure
        print(json.dumps(measure(loop, options.games, options.groups, options.in_flight, Path(out))))
        return
    rates: dict[str, list[float]] = {loop: [] for loop in LOOPS}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for loop in ("collect", "bare", *LOOPS[:2]):
                tokens, seconds, timers = in_own_process(loop, options, Path(folder, "run"))
                rates[loop].append(tokens / seconds)
                print(f"{loop}: {tokens} tokens in {seconds:.0f} s", flush=True)
                if timers:
                    profile(timers, seconds)
    print(
        f"{options.groups} groups of {GROUP_SIZE}, {options.in_flight} in flight, {options.repeats} repeats; tokens/s"
    )
    for loop in LOOPS:
        ratios = [a / b for a, b in zip(rates["collect"], rates[loop], strict=True)]
        print(f"  {loop:24}{spread(rates[loop])}   collect / this: {spread(ratios)}")


def profile(timers: Timed, seconds: float) -> None:
    idle = seconds - timers["engine"]
    print(f"  the engine's thread: works {timers['engine'] / seconds:.1%}, is idle {idle / seconds:.1%} of the time")
    for name in ("games", "tokens", "matching", "store"):
        print(f"  the event loop: {name} {timers.get(name, 0.0) / seconds:.2%}")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):7.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
