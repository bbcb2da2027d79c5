"""Files and folders that are written whole or not at all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from user import ROOT

from collect.files import replacing, replacing_folder


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "a") as temporary:
        (temporary / "one").write_text("1")
        assert not (tmp_path / "a").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "one"]


def test_a_folder_replaces_all_of_the_one_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("0")
    with replacing_folder(tmp_path / "a") as temporary:
        (temporary / "new").write_text("1")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "new"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("0")
    with pytest.raises(FileNotFoundError), replacing_folder(tmp_path / "a") as temporary:
        (temporary / "nowhere" / "new").write_text("1")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "old"]


def test_what_a_killed_writer_left_is_no_hindrance(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "a") as temporary:
        name = temporary
    name.mkdir()
    (name / "half").write_text("1")
    with replacing_folder(tmp_path / "a") as temporary:
        (temporary / "whole").write_text("1")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "whole"]


def test_a_file_is_begun_anew_whatever_a_killed_writer_of_the_same_process_number_left(tmp_path: Path) -> None:
    (tmp_path / f".a.{os.getpid()}.tmp").write_text("half of something longer")
    with replacing(tmp_path / "a") as temporary, temporary.open("a") as file:
        file.write("whole")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "whole"}


def test_a_file_is_written_through_a_link_which_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("middle")
    (tmp_path / "middle").symlink_to(tmp_path / "real" / "a")
    for text in ("new", "newer"):  # the file at the end is not there, and then it is
        with replacing(tmp_path / "link") as temporary:
            temporary.write_text(text)
            assert temporary.parent == tmp_path / "real"  # so that it can be renamed, whatever disk that is on
        assert (tmp_path / "real" / "a").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "middle").is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "link", "middle", "real"]


def test_a_link_that_goes_round_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"), replacing(tmp_path / "a") as temporary:
        temporary.write_text("lost")
    assert {path.name: str(path.readlink()) for path in tmp_path.iterdir()} == {"a": "b", "b": "a"}


# What killed writers left


@contextmanager
def writer(function: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of writing."""
    program = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from collect.files import {function}
with {function}(Path(sys.argv[1])) as temporary:
    (temporary / "half" if temporary.is_dir() else temporary).write_text("half")
    print(flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def age(folder: Path, hours: float) -> None:
    """Have all in the folder be changed so long ago."""
    then = time.time() - 3600 * hours
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(function: str, path: Path) -> None:
    if function == "replacing":
        with replacing(path) as temporary:
            temporary.write_text("whole")
    else:
        with replacing_folder(path) as temporary:
            (temporary / "whole").write_text("whole")


@pytest.mark.parametrize("function", ["replacing", "replacing_folder"])
def test_what_a_killed_writer_left_goes_with_the_next_writer_once_it_is_old(tmp_path: Path, function: str) -> None:
    with writer(function, tmp_path / "a") as killed:
        pass
    left = f".a.{killed.pid}.tmp"
    assert names(tmp_path) == [left]

    age(tmp_path, 0.9)
    write(function, tmp_path / "a")
    assert names(tmp_path) == [left, "a"]  # perhaps another machine is writing it, on a disk that both share
    age(tmp_path, 1.1)
    write(function, tmp_path / "b")
    assert names(tmp_path) == [left, "a", "b"]
    write(function, tmp_path / "a")
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("function", ["replacing", "replacing_folder"])
def test_what_a_living_process_is_writing_stays_however_slow_it_is(tmp_path: Path, function: str) -> None:
    with writer(function, tmp_path / "a") as living:
        age(tmp_path, 24)
        write(function, tmp_path / "a")
        assert names(tmp_path) == [f".a.{living.pid}.tmp", "a"]


def test_a_folder_is_as_old_as_the_last_file_that_changed_in_it(tmp_path: Path) -> None:
    with writer("replacing_folder", tmp_path / "a") as killed:
        pass
    left = tmp_path / f".a.{killed.pid}.tmp"
    age(tmp_path, 2)
    with (left / "half").open("a") as file:
        file.write("more")
    write("replacing_folder", tmp_path / "a")
    assert names(tmp_path) == [left.name, "a"]


def test_a_name_that_only_looks_like_a_temporary_file_of_this_path_is_left_alone(tmp_path: Path) -> None:
    others = [".a.tmp", ".a.x.tmp", ".a.12.tmp.bak", "a.999999999.tmp", ".aa.999999999.tmp", ".a.b.999999999.tmp"]
    for name in others:
        (tmp_path / name).write_text("mine")
    age(tmp_path, 24)
    write("replacing", tmp_path / "a")
    assert names(tmp_path) == sorted([*others, "a"])
