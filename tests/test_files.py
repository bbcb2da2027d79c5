"""Files and folders that are written whole or not at all."""

import os
from pathlib import Path

import pytest

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
