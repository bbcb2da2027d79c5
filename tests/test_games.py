import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GENERATED

from collect import games
from collect.errors import InputError
from collect.games import SPLITS, TASK_TYPES, Game, Task, find_games, find_sources, read_game_file, task_of

HEAT = "pick_heat_then_place_in_recep-Potato-None-SinkBasin-14"


def sr(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run the command line as `sr` does, errors included."""

    return subprocess.run([sys.executable, "-m", "sr", *map(str, arguments)], capture_output=True, text=True)


def add_game(split: Path, task: str, trial: str, solvable: object = True, task_type: str | None = None) -> Path:
    """A folder of a game as far as finding it goes; it cannot be played."""
    folder = split / task / trial
    folder.mkdir(parents=True)
    game = {"pddl_domain": "", "grammar": "", "pddl_problem": "", "solvable": solvable, "walkthrough": ["look"]}
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    parameters = {"object_target": "Potato", "parent_target": "SinkBasin", "toggle_target": "", "mrecep_target": ""}
    annotation = {"task_type": task_type or task.split("-")[0], "pddl_params": parameters}
    (folder / "traj_data.json").write_text(json.dumps(annotation))
    return folder


@pytest.fixture(autouse=True)
def nothing_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("split", SPLITS)
def test_games_are_found_by_split_and_sorted_by_their_folders(games_root: Path, split: str) -> None:
    found = find_games(split, games_root)

    assert len(found) == GENERATED[split]
    assert [game.id for game in found] == sorted(game.id for game in found)
    for game in found:
        assert game.path == games_root / split / game.id / "game.tw-pddl"
        assert (game.split, game.task_type) == (split, game.id.split("-")[0])


def test_a_folder_may_hold_the_splits_or_the_data_set_or_one_split_or_just_games(
    games_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "json_2.1.1").symlink_to(games_root)
    (tmp_path / "mine").symlink_to(games_root / "train")
    expected = [game.id for game in find_games("train", games_root)]

    for root in (tmp_path / "data", games_root / "train", tmp_path / "mine"):
        assert [game.id for game in find_games("train", root)] == expected
    one = find_games("train", games_root / "train" / expected[0])
    assert [game.id for game in one] == [expected[0]]


def test_games_of_no_named_split_are_taken_for_whichever_is_asked(games_root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(games_root / "train")

    assert {game.split for game in find_games("valid_unseen", tmp_path / "mine")} == {"valid_unseen"}


def test_downloaded_games_are_used_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "data"))
    add_game(tmp_path / "data" / "json_2.1.1" / "valid_seen", HEAT, "trial_T20190908_231731_054988")

    assert [game.id for game in find_games("valid_seen")] == [f"{HEAT}/trial_T20190908_231731_054988"]
    assert {split: source.origin for split, source in find_sources().items()} == {"valid_seen": "downloaded"}


def test_what_alfworld_does_not_play_is_left_out(tmp_path: Path) -> None:
    split = tmp_path / "valid_seen"
    add_game(split, HEAT, "trial_T1")
    add_game(split, HEAT, "trial_T2", solvable=False)
    add_game(split, HEAT, "trial_T3", solvable=None)
    (add_game(split, HEAT, "trial_T4") / "traj_data.json").unlink()
    add_game(split, "pick_and_place_with_movable_recep-Spoon-Cup-SinkBasin-4", "trial_T5")
    add_game(split, "pick_cool_then_place_in_recep-AppleSliced-None-SinkBasin-4", "trial_T6")
    add_game(split, "a_task_of_mine", "trial_T7")

    assert [game.id for game in find_games("valid_seen", tmp_path)] == [f"{HEAT}/trial_T1"]


def test_without_a_download_games_are_made_once_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(games.MADE, "valid_unseen", 1)

    made = find_games("valid_unseen")
    said = capfd.readouterr().err
    again = find_games("valid_unseen")

    assert len(made) == 1
    assert "no downloaded ALFWorld games found: making 1 valid_unseen games, once" in said
    assert str(tmp_path / "cache") in said
    assert again == made
    assert capfd.readouterr().err == ""
    assert find_sources()["valid_unseen"].origin == "generated"
    assert made[0].path.is_relative_to(tmp_path / "cache")


def test_the_task_is_that_of_the_annotation(six_games: list[Game]) -> None:
    for game in six_games:
        task_type, object_, _, goal, _ = game.id.split("/")[0].split("-")
        light = task_type == "look_at_obj_in_light"

        assert task_of(game) == Task(task_type, object_, "" if light else goal, goal if light else "")


def test_a_game_of_alfworlds_own_is_read(real_game: Path) -> None:
    game = read_game_file(real_game)

    assert "heat some potato and put it in sinkbasin" in game.grammar
    assert (game.solvable, game.walkthrough) == (None, None)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "unreadable"),
        (b'{"pddl_domain": "", "gram', "unreadable"),
        (b"\xff\xfe", "unreadable"),
        (b"[]", "no JSON object"),
        (b'{"pddl_domain": "", "grammar": ""}', "'pddl_problem'"),
        (b'{"pddl_domain": "", "grammar": 1, "pddl_problem": ""}', "'grammar'"),
        (b'{"pddl_domain": "", "grammar": "", "pddl_problem": "", "walkthrough": 3}', "'walkthrough'"),
    ],
)
def test_a_corrupt_game_file_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = add_game(tmp_path / "train", HEAT, "trial_T1") / "game.tw-pddl"
    file.write_bytes(content)

    with pytest.raises(InputError) as raised:
        find_games("train", tmp_path)

    assert str(file) in str(raised.value)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"task_type": "pick_and_place_simple", "pddl_params": 1}'])
def test_a_corrupt_annotation_is_named(tmp_path: Path, content: bytes) -> None:
    folder = add_game(tmp_path / "train", HEAT, "trial_T1")
    game = find_games("train", tmp_path)[0]
    (folder / "traj_data.json").write_bytes(content)

    with pytest.raises(InputError, match=r"traj_data\.json"):
        task_of(game)


def test_what_cannot_be_found_is_one_line_that_says_what_to_do(tmp_path: Path, games_root: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    unsolvable = tmp_path / "unsolvable"
    add_game(unsolvable, HEAT, "trial_T1", solvable=False)
    only_train = tmp_path / "some"
    only_train.mkdir()
    (only_train / "train").symlink_to(games_root / "train")
    cases = [
        ("test", games_root, "unknown split 'test'; choose from train, valid_seen, valid_unseen"),
        ("train", tmp_path / "absent", "no such folder of games; run `sr games make FOLDER`"),
        ("train", empty, "no usable games there; run `sr games make FOLDER`"),
        ("train", unsolvable, "1 not known to be solvable"),
        ("valid_seen", only_train, "holds no valid_seen games, only train"),
        ("valid_seen", games_root / "train", "holds no valid_seen games, only train"),
    ]
    for split, root, complaint in cases:
        with pytest.raises(InputError) as raised:
            find_games(split, root)
        assert complaint in str(raised.value)
        assert "\n" not in str(raised.value)


def test_two_games_of_one_name_are_refused(tmp_path: Path, games_root: Path) -> None:
    for copy in ("one", "two"):
        shutil.copytree(games_root / "valid_seen", tmp_path / "train" / copy)

    with pytest.raises(InputError, match="have the same <task>/<trial>"):
        find_games("train", tmp_path)


def test_sr_games_list_counts_by_split_and_task_type_and_says_where(games_root: Path) -> None:
    result = sr("games", "list", "--games", games_root)

    rows = [line.replace("│", " ").split() for line in result.stdout.splitlines()]
    assert result.returncode == 0
    assert ["all", *(str(GENERATED[split]) for split in SPLITS)] in rows
    assert all(any(row[:2] == [task_type, "1"] for row in rows) for task_type in TASK_TYPES)
    assert f"train: given, {games_root / 'train'}" in result.stdout


def test_sr_games_list_makes_nothing(tmp_path: Path) -> None:
    result = sr("games", "list")

    assert (result.returncode, result.stderr) == (0, "")
    assert "no games yet" in result.stdout
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["list", "--games", "absent"], "no such folder of games"),
        (["make", "OUT", "--train", "0", "--valid-seen", "0", "--valid-unseen", "0"], "no games asked for"),
        (["make", "OUT", "--share", "pick_three=1"], "unknown task type 'pick_three'"),
        (["make", "OUT", "--share", "pick_and_place_simple=much"], "write TYPE=SHARE"),
        (["make", "OUT", "--receptacles", "4,some"], "neither a number nor `all`"),
        (["make", "OUT", "--receptacles", "0"], "at least 1"),
        (["make", "OUT", "--absent", "1.5"], "in [0, 1)"),
        (["make", "FILE/OUT"], "give another folder"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    (tmp_path / "FILE").touch()
    result = sr("games", *(str(tmp_path / word) if "OUT" in word or word == "absent" else word for word in arguments))

    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert complaint in result.stderr
    assert not (tmp_path / "OUT").exists()
