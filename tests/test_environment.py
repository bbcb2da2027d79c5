import asyncio
import multiprocessing
import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from collect.environment import GroupEnvironment, Observation
from collect.errors import EnvironmentFault, MissingDependency
from collect.stock import StockInstance

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


def play(
    scenario: Callable[[GroupEnvironment], Coroutine[Any, Any, None]], game: Path = GAME, **options: float
) -> None:
    async def main() -> None:
        async with GroupEnvironment(game, 2, **options) as environment:
            await scenario(environment)

    asyncio.run(main())


def worker() -> Any:
    (process,) = multiprocessing.active_children()
    return process


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

    async def scenario(environment: GroupEnvironment) -> None:
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


def test_the_event_loop_goes_on_while_the_game_works() -> None:
    async def scenario(environment: GroupEnvironment) -> None:
        resetting = asyncio.ensure_future(environment.reset(0))
        turns = 0
        while not resetting.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 100
        assert "Your task is to" in resetting.result().text

    play(scenario)


def test_calls_are_served_in_the_order_of_asking_and_a_cancelled_one_confuses_nothing() -> None:
    async def scenario(environment: GroupEnvironment) -> None:
        await asyncio.gather(environment.reset(0), environment.reset(1))
        served: list[int] = []

        async def ask(number: int, index: int, command: str) -> Observation:
            answer = await environment.step(index, command)
            served.append(number)
            return answer

        commands = ["look", "inventory", "look", "help", "inventory", "look"]
        asked = [asyncio.ensure_future(ask(n, n % 2, command)) for n, command in enumerate(commands)]
        await asyncio.sleep(0)  # all are queued, and the first has been sent
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
    async def scenario(environment: GroupEnvironment) -> None:
        with pytest.raises(IndexError):
            await environment.reset(2)
        with pytest.raises(ValueError, match="was not reset"):
            await environment.step(1, "look")

    play(scenario)


# Faults


def test_a_killed_worker_is_a_fault_at_once_and_ever_after(temporary: Path) -> None:
    async def scenario(environment: GroupEnvironment) -> None:
        await environment.reset(0)
        asked = asyncio.ensure_future(environment.step(0, "look"))
        worker().kill()
        for call in (asked, environment.step(0, "look"), environment.reset(1)):
            with pytest.raises(EnvironmentFault, match=r"game\.tw-pddl: instance ., .*process died \(SIGKILL\)"):
                await call
        assert list(temporary.glob("sr-game-*"))

    play(scenario)
    assert list(temporary.iterdir()) == []


def test_a_worker_killed_while_it_loads_leaves_no_temporary_files(temporary: Path) -> None:
    async def scenario(environment: GroupEnvironment) -> None:
        resetting = asyncio.ensure_future(environment.reset(0))
        while not list(temporary.glob("sr-game-*/tmp*/libdownward.so")):
            await asyncio.sleep(0)
        worker().kill()
        with pytest.raises(EnvironmentFault, match="SIGKILL"):
            await resetting

    play(scenario)
    assert list(temporary.iterdir()) == []


def test_a_worker_that_hangs_is_a_fault_after_the_deadline(temporary: Path) -> None:
    async def scenario(environment: GroupEnvironment) -> None:
        os.kill(worker().pid, signal.SIGSTOP)
        with pytest.raises(EnvironmentFault, match=r"instance 0, reset: no answer in 0\.3 s"):
            await environment.reset(0)
        with pytest.raises(EnvironmentFault, match="died"):
            await environment.reset(1)

    play(scenario, deadline=0.3)
    assert list(temporary.iterdir()) == []


def test_closing_does_not_wait_for_a_call_that_hangs(temporary: Path) -> None:
    async def scenario(environment: GroupEnvironment) -> None:
        os.kill(worker().pid, signal.SIGSTOP)
        resetting = asyncio.ensure_future(environment.reset(0))
        await asyncio.sleep(0)
        await environment.close()
        with pytest.raises(EnvironmentFault, match="SIGKILL"):
            await resetting

    play(scenario, deadline=10_000)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"{}", b'{"pddl_domain": "(define", "grammar": ""}'])
def test_a_game_that_cannot_be_loaded_is_a_fault_that_names_it(tmp_path: Path, content: bytes) -> None:
    game = tmp_path / "game.tw-pddl"
    game.write_bytes(content)

    async def scenario(environment: GroupEnvironment) -> None:
        with pytest.raises(EnvironmentFault, match=str(game)):
            await environment.reset(0)

    play(scenario, game)


def test_no_room_for_temporary_files_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))

    async def scenario(environment: GroupEnvironment) -> None:
        raise AssertionError("opened")

    with pytest.raises(EnvironmentFault, match="no temporary folder"):
        play(scenario)


def test_without_alfworld_the_install_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alfworld", None)

    async def scenario(environment: GroupEnvironment) -> None:
        raise AssertionError("opened")

    with pytest.raises(MissingDependency, match=r"pip install 'selective-rollout\[collect\]'"):
        play(scenario)


# Ends


def test_a_group_given_up_while_its_worker_starts_leaves_nothing(temporary: Path) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(GroupEnvironment(GAME, 2).__aenter__())
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
    pid = int(user.stdout.readline())
    user.kill()
    user.wait()
    wait_until(lambda: not is_running(pid))
    wait_until(lambda: not list(short.glob("sr-game-*")))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_ends_them_without_a_trace(short: Path, number: signal.Signals) -> None:
    user = start_user(short)
    assert user.stdout is not None
    pid = int(user.stdout.readline())
    os.killpg(user.pid, number)
    _, said = user.communicate()
    assert user.returncode == (130 if number == signal.SIGINT else -number)
    assert said == ""
    wait_until(lambda: not is_running(pid))
    wait_until(lambda: not list(short.glob("sr-game-*")))


def test_a_users_own_modules_in_the_working_directory_are_not_taken(short: Path, tmp_path: Path) -> None:
    for name in ("collect.py", "textworld.py", "alfworld.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    user = start_user(short, "once", cwd=tmp_path)
    said, complaint = user.communicate()
    assert (user.returncode, complaint) == (0, "")
    assert int(said) > 0
    assert list(short.glob("sr-game-*")) == []
