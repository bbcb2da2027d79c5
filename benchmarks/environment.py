"""The compiled environment against TextWorld itself: `environment.py FOLDER GAMES [STEPS]`.

TextWorld plays each game in a process of its own, with ALFWorld's wrappers and nothing of ours; then the compiled game
is given the same commands, admissible ones at random. Times leave imports out on both sides. By turns, so that other
work on the machine weighs on both:

- step: every step of the walk is new to the compiled game (nothing of it is in memory), against the same steps there;
- reset, after the walk;
- first load of a game whose translation is in the cache, and of one whose is not, each to the end of the first reset,
  against loading and resetting there.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from collect.compiled import CompiledGame, CompiledInstance
from collect.games import SPLITS, find_sources, read_games
from collect.processes import join, start
from collect.translation_cache import load_translation

TEXTWORLD = """
import json, random, sys, time
from fast_downward import load_lib
from textworld import EnvInfos
from textworld.envs.pddl.pddl import PddlEnv
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos

game, seed, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
begun = time.perf_counter()
env = AlfredInfos(AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True, extras=["gamefile"]))))
env.load(game)
state = env.reset()
loaded = time.perf_counter()
rng, commands = random.Random(seed), []
walked = 0.0
for _ in range(steps):
    commands.append(rng.choice(state["admissible_commands"]))
    before = time.perf_counter()
    state, _, done = env.step(commands[-1])
    walked += time.perf_counter() - before
before = time.perf_counter()
env.reset()
after = time.perf_counter()
print(json.dumps([commands, walked / steps, after - before, loaded - begun]))
"""
RESETS = 1000


def textworld(game: Path, seed: int, steps: int) -> tuple[list[str], float, float, float]:
    """Commands, then seconds a step, of a reset and of the first load."""
    command = [sys.executable, "-c", TEXTWORLD, str(game), str(seed), str(steps)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    commands, step, reset, load = json.loads(output.splitlines()[-1])
    return commands, step, reset, load


def compiled(game: Path, commands: list[str]) -> tuple[float, float, float, float]:
    """Seconds a step, of a reset, of the first load with the translation in the cache, and without."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        begun = time.perf_counter()
        CompiledInstance(CompiledGame(load_translation(game))).reset()
        never = time.perf_counter()
        instance = CompiledInstance(CompiledGame(load_translation(game)))
        instance.reset()
        loaded = time.perf_counter()
    for command in commands:
        instance.step(command)
    walked = time.perf_counter()
    for _ in range(RESETS):
        instance.reset()
    reset = time.perf_counter()
    return (walked - loaded) / len(commands), (reset - walked) / RESETS, loaded - never, never - begun


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    sources = find_sources(folder)
    games = [game for split in (*SPLITS, "") if split in sources for game in read_games(sources[split].folder, split)]
    games = random.Random(0).sample(games, min(count, len(games)))
    join(start(time.sleep, 0))  # brings up the server that translators are forked from
    rows = []
    for number, game in enumerate(games):
        commands, step, reset, load = textworld(game.path, number, steps)
        rows.append(((step, reset, load, load), compiled(game.path, commands)))
    print(f"{len(games)} games, {len(games) * steps} steps, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    print(f"{'median, ms':24}{'TextWorld':>12}{'compiled':>12}{'ratio':>10}   (range over the games)")
    names = ("step, never seen", "reset", "first load, cached", "first load ever")
    for column, name in enumerate(names):
        pairs = [(theirs[column], ours[column]) for theirs, ours in rows]
        ratios = [theirs / ours for theirs, ours in pairs]
        medians = [1000 * statistics.median(pair[side] for pair in pairs) for side in (0, 1)]
        figures = f"{medians[0]:12.3f}{medians[1]:12.4f}{statistics.median(ratios):10.1f}"
        print(f"{name:24}{figures}   ({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main()
