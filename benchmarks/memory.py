"""What compiled games take of memory and disk: `memory.py FOLDER [GAMES] [EPISODES]`.

- a game, and an instance: what Python's allocator gives out for one more, and for a game also once players at random
  have filled what is kept of its states. For TextWorld, what its process grows by with each game loaded and reset;
- over many episodes at random, spread over the games: the memory of this process after each tenth of them, and the
  files that are left in the temporary folder.
"""

import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import psutil

from collect.compiled import CompiledGame, CompiledInstance
from collect.games import SPLITS, find_sources, read_games
from collect.translation_cache import load_translation

TEXTWORLD = """
import sys, psutil
from textworld import EnvInfos
from textworld.envs.pddl.pddl import PddlEnv
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos

envs, before = [], 0
for game in sys.argv[1:]:
    env = AlfredInfos(AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True, extras=["gamefile"]))))
    env.load(game)
    env.reset()
    envs.append(env)
    now = psutil.Process().memory_info().rss
    if before:
        print(now - before)
    before = now
"""
HORIZON = 30
INSTANCES = 10_000
FILLING = 6_000  # steps at random that fill what is kept of a game


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def given_out() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def walk(game: CompiledGame, rng: random.Random, steps: int) -> None:
    instance = CompiledInstance(game)
    observation = instance.reset()
    for _ in range(steps):
        if observation.done:
            observation = instance.reset()
        observation = instance.step(rng.choice(observation.admissible_commands))


def instance_bytes(game: CompiledGame) -> float:
    before = given_out()
    kept = [CompiledInstance(game) for _ in range(INSTANCES)]
    return (given_out() - before) / len(kept)


def report(name: str, values: list[float], unit: str = "MB") -> None:
    print(f"{name:44}{statistics.median(values):9.2f} {unit}   ({min(values):.2f} to {max(values):.2f})")


def main() -> None:
    folder = Path(sys.argv[1])
    count, episodes = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((2, 12), (3, 10_000)))
    sources = find_sources(folder)
    found = [game for split in (*SPLITS, "") if split in sources for game in read_games(sources[split].folder, split)]
    paths = [game.path for game in random.Random(0).sample(found, min(count, len(found)))]
    for path in paths:  # in the cache beforehand, and code and tables of Python's own loaded
        CompiledGame(load_translation(path))
    command = [sys.executable, "-c", TEXTWORLD, *map(str, paths)]
    theirs = [int(line) / 2**20 for line in subprocess.check_output(command, text=True).split()]

    with tempfile.TemporaryDirectory() as temporary:
        tempfile.tempdir = temporary
        games: list[CompiledGame] = []
        loaded, filled = [], []
        rng = random.Random(1)
        tracemalloc.start()
        for path in paths:
            before = given_out()
            games.append(CompiledGame(load_translation(path)))
            loaded.append((given_out() - before) / 2**20)
            walk(games[-1], rng, FILLING)
            filled.append((given_out() - before) / 2**20)
        instance = instance_bytes(games[0])
        tracemalloc.stop()
        print(f"{len(paths)} games, {os.cpu_count()} cores, Python {sys.version.split()[0]}; median (least to most)")
        report("a game on TextWorld", theirs)
        report("a compiled game, loaded", loaded)
        report(f"the same after {FILLING} steps at random", filled)
        print(f"{'an instance':44}{instance:9.0f} bytes   (mean of {INSTANCES})")
        sizes = []
        for _ in range(10):
            for number in range(episodes // 10):
                walk(games[number % len(games)], rng, HORIZON)
            sizes.append(resident() / 2**20)
        shown = " ".join(f"{size:.0f}" for size in sizes)
        print(f"memory of the process over {episodes} episodes of {HORIZON} steps, after each tenth, MB: {shown}")
        print(f"files left in the temporary folder: {sum(1 for _ in Path(temporary).rglob('*'))}")


if __name__ == "__main__":
    main()
