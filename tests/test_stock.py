import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from collect.environment import Observation
from collect.errors import EnvironmentFault
from collect.games import Game, read_game_file
from collect.stock import StockInstance

# What TextWorld says when ALFWorld's own wrappers play a game, commands drawn at random: one line a step.
ORACLE = """
import json, random, sys
import textworld, textworld.gym
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
wrappers = [AlfredDemangler(shuffle=False), AlfredInfos]
name = textworld.gym.register_games([sys.argv[1]], infos, batch_size=1, asynchronous=False,
                                    max_episode_steps=1000, wrappers=wrappers)
env = textworld.gym.make(name)
rng = random.Random(int(sys.argv[2]))
texts, infos = env.reset()
command = None
for _ in range(25):
    print(json.dumps([command, texts[0], infos["admissible_commands"][0], infos["won"][0]]))
    command = rng.choice([*infos["admissible_commands"][0], "sing"])
    texts, _, _, infos = env.step([command])
"""


def play(instance: StockInstance, commands: list[str]) -> list[Observation]:
    return [instance.reset(), *(instance.step(command) for command in commands)]


@pytest.fixture(scope="module")
def two_walkthroughs(six_games: list[Game]) -> list[tuple[Path, list[str]]]:
    chosen = [game for game in six_games if "heat" in game.task_type or "look" in game.task_type]
    return [(game.path, list(read_game_file(game.path).walkthrough or ())) for game in chosen]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="TextWorld itself plays no ALFWorld game on Python 3.13")
def test_says_what_alfworlds_own_environment_says(real_game: Path) -> None:
    import json

    output = subprocess.run([sys.executable, "-c", ORACLE, real_game, "0"], capture_output=True, text=True, check=True)
    expected = [json.loads(line) for line in output.stdout.splitlines()]
    instance = StockInstance(real_game)

    seen = play(instance, [command for command, *_ in expected[1:]])

    instance.close()
    assert len(expected) == 25
    assert [[o.text, list(o.admissible_commands), o.won] for o in seen] == [line[1:] for line in expected]


def test_the_walkthrough_wins_and_only_its_last_command_is_rewarded(
    two_walkthroughs: list[tuple[Path, list[str]]],
) -> None:
    path, commands = two_walkthroughs[0]
    instance = StockInstance(path)

    seen = play(instance, commands)
    after = instance.step("look")

    instance.close()
    assert [o.reward for o in seen] == [0.0] * len(commands) + [1.0]
    assert [o.won for o in seen] == [o.done for o in seen] == [False] * len(commands) + [True]
    assert (after.reward, after.won) == (0.0, True)


def test_a_command_that_is_not_admitted_changes_nothing(six_games: list[Game]) -> None:
    instance = StockInstance(six_games[0].path)
    before = instance.reset()

    after = instance.step("dance")

    instance.close()
    assert after.text == "Nothing happens."
    assert after.admissible_commands == before.admissible_commands


def test_instances_played_by_turns_do_not_leak_into_each_other(two_walkthroughs: list[tuple[Path, list[str]]]) -> None:
    (one, one_commands), (other, other_commands) = two_walkthroughs
    alone = []
    for path, commands in two_walkthroughs:
        instance = StockInstance(path)
        alone.append(play(instance, commands))
        instance.close()

    instances = [StockInstance(one), StockInstance(other), StockInstance(one)]
    together = [[instance.reset()] for instance in instances]
    scripts = [one_commands, other_commands, []]
    for turn in range(max(map(len, scripts))):
        for instance, script, seen in zip(instances, scripts, together, strict=True):
            if turn < len(script):
                seen.append(instance.step(script[turn]))

    assert together[:2] == alone
    assert play(instances[2], one_commands) == alone[0]  # untouched by the first instance's winning the same game
    for instance in instances:
        instance.close()


def test_a_reset_leaves_no_trace_of_what_was_played(six_games: list[Game]) -> None:
    instance = StockInstance(six_games[0].path)
    fresh = instance.reset()
    rng = random.Random(0)
    observation = fresh
    for _ in range(8):
        observation = instance.step(rng.choice(observation.admissible_commands))

    again = instance.reset()

    instance.close()
    assert again == fresh


def test_a_program_in_a_game_file_is_refused_and_not_run(six_games: list[Game], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    text = six_games[0].path.read_text()
    game = tmp_path / "game.tw-pddl"
    game.write_text(text.replace("{r.indefinite} {r.name or r.id}", f"{{open('{trace}', 'w').close()}}"))
    assert game.read_text() != text

    instance = StockInstance(game)
    with pytest.raises(EnvironmentFault, match="not text"):
        instance.reset()

    instance.close()
    assert not trace.exists()


def test_what_cannot_be_loaded_is_a_fault_that_names_the_file(tmp_path: Path) -> None:
    game = tmp_path / "game.tw-pddl"
    game.write_text('{"pddl_domain": "(define", "grammar": "", "pddl_problem": ""}')
    arguments = list(sys.argv)

    with pytest.raises(EnvironmentFault, match=str(game)):
        StockInstance(game)

    assert sys.argv == arguments


def test_a_process_that_closed_many_instances_ends_well_and_keeps_its_arguments(six_games: list[Game]) -> None:
    program = """
import sys
from pathlib import Path
from collect.stock import StockInstance
for _ in range(4):
    instance = StockInstance(Path(sys.argv[1]))
    instance.reset()
    instance.close()
    instance.close()
print(len([line for line in open("/proc/self/maps") if "libdownward" in line and "r-xp" in line]), sys.argv[2:])
"""
    command = [sys.executable, "-c", program, str(six_games[0].path), "argument"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=os.sep)

    assert (result.returncode, result.stdout) == (0, "1 ['argument']\n"), result.stderr
