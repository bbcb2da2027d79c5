"""Translations on disk: made once, by any number of processes, and made again when damaged."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collect import translation_cache
from collect.errors import EnvironmentFault
from collect.games import Game
from collect.sas import UnknownForm
from collect.translation_cache import load_translation

pytest.importorskip("alfworld", reason="needs the collect extra: pip install 'selective-rollout[collect]'")

LOAD = """
import sys
from pathlib import Path
from collect.translation_cache import load_translation
load_translation(Path(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of translations, empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "selective-rollout" / "translations"


def forbid_making(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(translation_cache, "start", fail)


def test_the_second_load_is_from_disk_and_equal(
    six_games: list[Game], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load_translation(six_games[0].path)
    (file,) = cache.iterdir()
    assert json.loads(gzip.decompress(file.read_bytes())).keys() >= {"task", "grammar", "actions"}
    forbid_making(monkeypatch)
    assert load_translation(six_games[0].path) == made


def test_a_cached_game_needs_neither_textworld_nor_alfworld(six_games: list[Game]) -> None:
    load_translation(six_games[0].path)
    check = LOAD + "\nassert not {'textworld', 'alfworld', 'fast_downward', 'tatsu'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check, six_games[0].path], check=True)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other", "not gzip"])
def test_a_damaged_translation_is_made_again(six_games: list[Game], cache: Path, damage: str) -> None:
    made = load_translation(six_games[0].path)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(
        {
            "empty": b"",
            "cut": whole[:middle],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 8]) + whole[middle + 1 :],
            "other": gzip.compress(b'{"task": 1}'),
            "not gzip": b"{}",
        }[damage]
    )
    assert load_translation(six_games[0].path) == made
    assert file.read_bytes() == whole


def test_another_grammar_is_another_translation(six_games: list[Game], cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "game.tw-pddl"
    other.write_text(six_games[0].path.read_text().replace("You open the", "You slowly open the"))
    assert load_translation(six_games[0].path) != load_translation(other)
    assert len(list(cache.iterdir())) == 2


def test_another_version_of_a_translator_is_another_translation(
    six_games: list[Game], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_translation(six_games[0].path)
    monkeypatch.setattr(translation_cache, "identity", lambda: "textworld 2")
    load_translation(six_games[0].path)
    assert len(list(cache.iterdir())) == 2


def test_processes_that_make_the_same_at_once_leave_one_whole_file(six_games: list[Game], cache: Path) -> None:
    users = [subprocess.Popen([sys.executable, "-c", LOAD, six_games[0].path]) for _ in range(4)]
    assert [user.wait() for user in users] == [0] * 4
    (file,) = cache.iterdir()
    assert translation_cache.read(file) == load_translation(six_games[0].path)


def test_without_a_folder_to_keep_it_the_translation_is_made_all_the_same(
    six_games: list[Game], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_translation(six_games[0].path).actions


def test_a_user_killed_amid_it_leaves_neither_process_nor_file(six_games: list[Game], cache: Path) -> None:
    user = subprocess.Popen([sys.executable, "-c", LOAD, six_games[0].path], start_new_session=True)
    while not (started := _session(user.pid) - {user.pid}):
        time.sleep(0.01)
    user.kill()
    user.wait()
    deadline = time.monotonic() + 20
    while _session(user.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert started
    assert _session(user.pid) == set()
    assert not cache.exists() or not list(cache.glob("*.json.gz"))


def _session(leader: int) -> set[int]:
    """The processes of a session that run."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.add(int(folder.name))
    return found


def test_a_game_of_another_form_has_none(six_games: list[Game], tmp_path: Path) -> None:
    other = tmp_path / "game.tw-pddl"
    other.write_text(six_games[0].path.read_text().replace("{r.name}", "{r.name.upper()}"))
    with pytest.raises(UnknownForm, match=r"not text: r\.name\.upper"):
        load_translation(other)


@pytest.mark.parametrize("content", [None, b"{}", b"\0"])
def test_a_file_that_is_no_game_is_a_fault(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "game.tw-pddl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EnvironmentFault, match=str(path)):
        load_translation(path)


def test_a_process_that_dies_is_a_fault(six_games: list[Game], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation_cache, "_translate", die)
    with pytest.raises(EnvironmentFault, match="its process died"):
        load_translation(six_games[0].path)


def die(*_: object) -> None:
    """Stands in for what translates, and ends at once."""
    os._exit(1)
