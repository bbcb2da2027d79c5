import asyncio
import multiprocessing
import multiprocessing.util
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from collect.environment import Observation
from collect.errors import EnvironmentFault
from collect.games import Game
from collect.stock import StockInstance
from collect.stock_group import StockGroup

GAME = Path(__file__).parents[2] / "shared" / "alfworld" / "game.tw-pddl"
# The countertop can be reached from the coffee machine's place.
SOLUTION = [
    "go to coffeemachine 1",
    "take potato 2 from countertop 2",
    "go to microwave 1",
    "heat potato 2 with microwave 1",
    "go to sinkbasin 1",
    "move potato 2 to sinkbasin 1",
]
USER = Path(__file__).parent / "environment_user.py"

pytest.importorskip("alfworld", reason="needs the collect extra: pip install 'selective-rollout[collect]'")
pytestmark = pytest.mark.skipif(not GAME.exists(), reason="needs the real game in ../shared/alfworld")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the games' temporary folders go, and in which none may be left."""
    multiprocessing.util.get_temp_dir()  # multiprocessing's own socket stays where it outlives this test
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def play(scenario: Callable[[StockGroup], Coroutine[Any, Any, None]], game: Path = GAME, **options: float) -> None:
    async def main() -> None:
        async with StockGroup(game, 2, **options) as environment:
            await scenario(environment)

    asyncio.run(main())


def worker() -> Any:
    (process,) = multiprocessing.active_children()
    return process


def instances() -> list[int]:
    """The processes of the group's instances, in the order of their numbers."""
    pid = worker().pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited 30 s in vain")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Playing


def test_instances_do_not_leak_into_each_other_and_say_what_a_lone_one_says() -> None:
    """Instance 0 wins while 1 looks on: both hear, byte for byte, what an instance alone in its process says."""
    looking = ["go to countertop 2", "inventory", "look", "go to sinkbasin 1", "take potato 2", "go to countertop 2"]
    winner, onlooker = [], []

    async def scenario(environment: StockGroup) -> None:
        winner.append(await environment.reset(0))
        onlooker.append(await environment.reset(1))
        for command, look in zip(SOLUTION, looking, strict=True):
            winner.append(await environment.step(0, command))
            onlooker.append(await environment.step(1, look))

    play(scenario)
    assert (winner[-1].won, winner[-1].done, winner[-1].reward) == (True, True, 1.0)
    assert "potato 2" in onlooker[-1].text
    assert onlooker[-1].text == onlooker[1].text
    alone = StockInstance(GAME)
    assert winner == [alone.reset(), *(alone.step(command) for command in SOLUTION)]
    assert onlooker == [alone.reset(), *(alone.step(command) for command in looking)]
    alone.close()


def test_a_reset_after_steps_is_a_real_one() -> None:
    async def scenario(environment: StockGroup) -> None:
        first = await environment.reset(0)
        for command in SOLUTION:
            await environment.step(0, command)
        assert await environment.reset(0) == first == await environment.reset(1)
        for command in SOLUTION:
            last = await environment.step(0, command)
        assert (last.won, last.reward) == (True, 1.0)

    play(scenario)


def test_instances_played_at_once_say_what_lone_ones_say(six_games: list[Game]) -> None:
    """Three instances, each with its own commands at random, against one after another in this process."""

    async def trajectory(environment: StockGroup, index: int) -> list[tuple[str, Observation]]:
        rng = random.Random(index)
        seen = [("", await environment.reset(index))]
        for _ in range(8):
            command = rng.choice([*seen[-1][1].admissible_commands, "sing"])
            seen.append((command, await environment.step(index, command)))
        return seen

    async def group(game: Game) -> list[list[tuple[str, Observation]]]:
        async with StockGroup(game.path, 3) as environment:
            return await asyncio.gather(*(trajectory(environment, index) for index in range(3)))

    async def both() -> list[list[list[tuple[str, Observation]]]]:
        return await asyncio.gather(*map(group, six_games[:2]))

    for game, trajectories in zip(six_games, asyncio.run(both()), strict=False):
        assert len({tuple(command for command, _ in seen) for seen in trajectories}) == 3
        alone = StockInstance(game.path)
        for seen in trajectories:
            assert [o for _, o in seen] == [alone.reset(), *(alone.step(command) for command, _ in seen[1:])]
        alone.close()


def test_one_instance_does_not_wait_for_another() -> None:
    async def scenario(environment: StockGroup) -> None:
        await environment.reset(0)
        os.kill(instances()[0], signal.SIGSTOP)
        stopped = asyncio.ensure_future(environment.step(0, "look"))
        await environment.reset(1)
        assert (await environment.step(1, "inventory")).text == "You are not carrying anything."
        assert not stopped.done()
        os.kill(instances()[0], signal.SIGCONT)
        assert (await stopped).text

    play(scenario)


def test_many_groups_play_at_once(temporary: Path) -> None:
    async def group() -> list[Observation]:
        async with StockGroup(GAME, 8) as environment:
            await asyncio.gather(*map(environment.reset, range(8)))
            return await asyncio.gather(*(environment.step(index, "look") for index in range(8)))

    async def main() -> list[list[Observation]]:
        return await asyncio.gather(*(group() for _ in range(4)))

    asyncio.run(group())  # brings up the server, which stays
    files = list(Path("/proc/self/fd").iterdir())
    seen = asyncio.run(main())
    assert [len(group) for group in seen] == [8] * 4
    assert {observation for group in seen for observation in group} == {seen[0][0]}
    assert multiprocessing.active_children() == []
    assert list(temporary.iterdir()) == []
    assert list(Path("/proc/self/fd").iterdir()) == files


def test_the_event_loop_goes_on_while_the_game_works() -> None:
    async def scenario(environment: StockGroup) -> None:
        resetting = asyncio.ensure_future(environment.reset(0))
        turns = 0
        while not resetting.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 100
        assert "Your task is to" in resetting.result().text

    play(scenario)


def test_calls_are_served_in_the_order_of_asking_and_a_cancelled_one_confuses_nothing() -> None:
    async def scenario(environment: StockGroup) -> None:
        await environment.reset(0)
        served: list[int] = []

        async def ask(number: int, command: str) -> Observation:
            answer = await environment.step(0, command)
            served.append(number)
            return answer

        commands = ["look", "inventory", "look", "help", "inventory", "look"]
        asked = [asyncio.ensure_future(ask(n, command)) for n, command in enumerate(commands)]
        await asyncio.sleep(0)  # all have been sent
        asked[0].cancel()
        asked[3].cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert served == [1, 2, 4, 5]
        assert [type(answer).__name__ for answer in answers].count("CancelledError") == 2
        texts = [answer.text for answer in answers if isinstance(answer, Observation)]
        assert texts[0] == texts[2] == "You are not carrying anything."
        assert texts[1] == texts[3] != texts[0]

    play(scenario)


def test_a_call_that_makes_no_sense_is_a_bug_and_no_fault() -> None:
    async def scenario(environment: StockGroup) -> None:
        with pytest.raises(IndexError):
            await environment.reset(2)
        with pytest.raises(ValueError, match="was not reset"):
            await environment.step(1, "look")

    play(scenario)


# Faults


def test_a_killed_worker_is_a_fault_at_once_and_ever_after(temporary: Path) -> None:
    async def scenario(environment: StockGroup) -> None:
        await environment.reset(0)
        asked = asyncio.ensure_future(environment.step(0, "look"))
        worker().kill()
        for call in (asked, environment.step(0, "look"), environment.reset(1)):
            with pytest.raises(EnvironmentFault, match=r"game\.tw-pddl: instance ., .*process died \(SIGKILL\)"):
                await call
        assert list(temporary.glob("sr-game-*"))

    play(scenario)
    assert list(temporary.iterdir()) == []


def test_a_killed_instance_is_a_fault_at_once_and_ever_after_and_the_others_play_on() -> None:
    async def scenario(environment: StockGroup) -> None:
        await asyncio.gather(environment.reset(0), environment.reset(1))
        asked = asyncio.ensure_future(environment.step(1, "look"))
        await asyncio.sleep(0)
        os.kill(instances()[1], signal.SIGKILL)
        for call in (asked, environment.step(1, "inventory"), environment.reset(1)):
            with pytest.raises(EnvironmentFault, match=r"game\.tw-pddl: instance 1, .*process died \(SIGKILL\)"):
                await call
        assert (await environment.step(0, "inventory")).text == "You are not carrying anything."

    play(scenario)


def test_an_instance_that_hangs_ends_its_group_after_the_deadline(temporary: Path) -> None:
    async def scenario(environment: StockGroup) -> None:
        await asyncio.gather(environment.reset(0), environment.reset(1))
        os.kill(instances()[0], signal.SIGSTOP)
        with pytest.raises(EnvironmentFault, match=r"instance 0, step 'look': no answer in 10 s"):
            await environment.step(0, "look")
        with pytest.raises(EnvironmentFault, match=r"instance 1, step 'look': .*died \(SIGKILL\)"):
            await environment.step(1, "look")
        with pytest.raises(EnvironmentFault, match="no answer in 10 s"):
            await environment.reset(0)

    play(scenario, deadline=10)
    assert list(temporary.iterdir()) == []


def test_a_worker_killed_while_it_loads_leaves_no_temporary_files(temporary: Path) -> None:
    async def scenario(environment: StockGroup) -> None:
        resetting = asyncio.ensure_future(environment.reset(0))
        while not list(temporary.glob("sr-game-*/tmp*/libdownward.so")):
            await asyncio.sleep(0)
        worker().kill()
        with pytest.raises(EnvironmentFault, match="SIGKILL"):
            await resetting

    play(scenario)
    assert list(temporary.iterdir()) == []


def test_a_worker_that_hangs_is_a_fault_after_the_deadline(temporary: Path) -> None:
    async def scenario(environment: StockGroup) -> None:
        os.kill(worker().pid, signal.SIGSTOP)
        with pytest.raises(EnvironmentFault, match=r"instance 0, reset: no answer in 0\.3 s"):
            await environment.reset(0)
        with pytest.raises(EnvironmentFault, match="died"):
            await environment.reset(1)

    play(scenario, deadline=0.3)
    assert list(temporary.iterdir()) == []


def test_closing_does_not_wait_for_a_call_that_hangs(temporary: Path) -> None:
    async def scenario(environment: StockGroup) -> None:
        os.kill(worker().pid, signal.SIGSTOP)
        resetting = asyncio.ensure_future(environment.reset(0))
        await asyncio.sleep(0)
        await environment.close()
        with pytest.raises(EnvironmentFault, match="instance 0, reset: closed amid the call"):
            await resetting
        with pytest.raises(ValueError, match="closed"):
            await environment.reset(0)

    play(scenario, deadline=10_000)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"{}", b'{"pddl_domain": "(define", "grammar": ""}'])
def test_a_game_that_cannot_be_loaded_is_a_fault_that_names_it(tmp_path: Path, content: bytes) -> None:
    game = tmp_path / "game.tw-pddl"
    game.write_bytes(content)

    async def scenario(environment: StockGroup) -> None:
        with pytest.raises(EnvironmentFault, match=str(game)):
            await environment.reset(0)

    play(scenario, game)


def test_no_room_for_temporary_files_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))

    async def scenario(environment: StockGroup) -> None:
        raise AssertionError("opened")

    with pytest.raises(EnvironmentFault, match="no temporary folder"):
        play(scenario)


# Ends


def test_closing_ends_every_process_even_a_stopped_one(temporary: Path) -> None:
    pids: list[int] = []

    async def scenario(environment: StockGroup) -> None:
        await environment.reset(1)  # the last that is forked
        pids.extend([worker().pid, *instances()])
        os.kill(pids[1], signal.SIGSTOP)

    play(scenario)
    assert len(pids) == 3
    assert [pid for pid in pids if is_running(pid)] == []
    assert list(temporary.iterdir()) == []


def test_a_group_given_up_while_its_worker_starts_leaves_nothing(temporary: Path) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(StockGroup(GAME, 2).__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())
    assert multiprocessing.active_children() == []
    assert list(temporary.iterdir()) == []


def start_user(temporary: Path, *options: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(USER), str(GAME), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONSAFEPATH": "1"},
    )


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough to hold multiprocessing's socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_a_worker_ends_and_cleans_up_when_its_program_is_killed(short: Path) -> None:
    user = start_user(short)
    assert user.stdout is not None
    pids = [int(pid) for pid in user.stdout.readline().split()]
    assert len(pids) == 3
    os.kill(pids[2], signal.SIGSTOP)
    user.kill()
    user.wait()
    wait_until(lambda: not any(map(is_running, pids)))
    wait_until(lambda: not list(short.glob("sr-game-*")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_ends_them_without_a_trace(short: Path, number: signal.Signals) -> None:
    user = start_user(short)
    assert user.stdout is not None
    pids = [int(pid) for pid in user.stdout.readline().split()]
    os.killpg(user.pid, number)
    _, said = user.communicate()
    assert user.returncode == (130 if number == signal.SIGINT else -number)
    assert said == ""
    wait_until(lambda: not any(map(is_running, pids)))
    wait_until(lambda: not list(short.glob("sr-game-*")))


def test_a_users_own_modules_in_the_working_directory_are_not_taken(short: Path, tmp_path: Path) -> None:
    for name in ("collect.py", "textworld.py", "alfworld.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    user = start_user(short, "once", cwd=tmp_path)
    said, complaint = user.communicate()
    assert (user.returncode, complaint) == (0, "")
    assert len(said.split()) == 3
    assert list(short.glob("sr-game-*")) == []
