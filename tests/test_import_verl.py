import json
from pathlib import Path
from typing import Any

import pytest

from collect.errors import InputError
from collect.import_format import Format
from collect.importer import Imported, import_log
from collect.store import scan

LOGS = Path(__file__).with_name("logs") / "verl"


def brought(log: Path, run: Path) -> Imported:
    return import_log(log, Format.VERL, {}, run, lambda done, total: None)


def rows(run: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return scan(run, table).select(columns).collect().rows()


def write(folder: Path, samples: list[dict[str, Any]], name: str = "1.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return folder / name


def sample(prompt: str, score: float, step: int = 1, **more: Any) -> dict[str, Any]:
    return {"input": prompt, "output": "Action: look", "gts": None, "score": score, "step": step, **more}


def test_responses_to_one_prompt_in_one_step_are_a_group(tmp_path: Path) -> None:
    imported = brought(LOGS / "1.jsonl", tmp_path / "run")
    groups = rows(tmp_path / "run", "groups", "group_id", "rewards", "policy_version", "horizon")
    (mug, *of_mug), (book, *of_book) = groups
    assert of_mug == [[1.0, 0.0], 0, 3]
    assert of_book == [[0.0, 0.0], 0, 3]
    assert mug != book
    assert mug.startswith("prompt-")
    assert mug.endswith("#0")
    assert rows(tmp_path / "run", "trajectories", "actions", "length", "won", "ending") == [
        (["go to desk 1", "take mug 1"], 2, None, None),
        (["go to desk 1", "look"], 2, None, None),
        (["look", "look", "look"], 3, None, None),
        (["look", "look", "inventory"], 3, None, None),
    ]
    assert rows(tmp_path / "run", "steps", "observation", "reply")[:2] == [
        ("Put a mug on the shelf.", "Thought: first.\nAction: go to desk 1"),
        ("You see 0.", "<think>now</think>\n<action>take mug 1</action>"),
    ]
    book_steps = scan(tmp_path / "run", "steps").collect()["observation"].to_list()
    assert "Look at the book\u0085under the lamp." in book_steps
    assert imported.horizon == 3
    assert imported.actions == {"<action> tags": 6, '"Action:" lines': 4}
    assert imported.null["trajectories"][:2] == ["won", "ending"]


def test_newer_dumps_say_which_outputs_are_one_rollout(tmp_path: Path) -> None:
    brought(LOGS / "2.jsonl", tmp_path / "run")
    assert rows(tmp_path / "run", "trajectories", "actions", "reward") == [
        (["go to desk 1", "go to shelf 1", "move mug 1"], 1.0),
        (["go to desk 1", "go to shelf 1"], 1.0),
    ]


def test_a_folder_of_steps_is_one_run_in_which_a_prompt_that_comes_again_is_the_same_game(tmp_path: Path) -> None:
    imported = brought(LOGS, tmp_path / "run")
    groups = rows(tmp_path / "run", "groups", "game_id", "visit", "policy_version")
    assert [(visit, version) for _, visit, version in groups] == [(0, 0), (0, 0), (1, 1)]
    assert groups[0][0] == groups[2][0] != groups[1][0]
    assert imported.groups == 3


def test_uids_without_numbers_name_the_group(tmp_path: Path) -> None:
    log = write(tmp_path, [sample("same", float(n), uid=uid) for n, uid in enumerate(("a", "b", "a", "b"))])
    brought(log, tmp_path / "run")
    assert rows(tmp_path / "run", "groups", "rewards", "visit") == [([0.0, 2.0], 0), ([1.0, 3.0], 1)]


def test_groups_of_another_size_than_most_are_left_out_and_named(tmp_path: Path) -> None:
    samples = [sample(p, 0.0) for p in "aaabbbcc"] + [sample("d", 0.0)]
    imported = brought(write(tmp_path, samples), tmp_path / "run")
    assert [len(rewards) for (rewards,) in rows(tmp_path / "run", "groups", "rewards")] == [3, 3]
    assert imported.left_out.total == 2
    assert [told.split(": ")[1] for told in imported.left_out.first] == [
        "2 trajectories; most groups have 3",
        "1 trajectories; most groups have 3",
    ]


def test_malformed_lines_are_named_and_a_torn_last_one_is_tolerated(tmp_path: Path) -> None:
    good = [json.dumps(sample("a", 1.0)), json.dumps(sample("a", 0.0))]
    bad = [
        json.dumps(sample("a", 0.0) | {"score": None}),
        json.dumps({"input": "a", "score": 1.0}),
        "nothing",
        json.dumps(sample("a", 0.0, 2**31)),
    ]
    (tmp_path / "1.jsonl").write_text("\n".join([good[0], *bad, good[1], good[0][:40]]))
    imported = brought(tmp_path / "1.jsonl", tmp_path / "run")
    assert rows(tmp_path / "run", "groups", "rewards") == [([1.0, 0.0],)]
    assert [told.split(": ")[0] for told in imported.malformed.first] == [f"1.jsonl, line {n}" for n in (2, 3, 4, 5)]
    assert imported.torn == ["1.jsonl, line 7: cut off in the middle; left out"]


def test_a_log_of_single_responses_has_no_group(tmp_path: Path) -> None:
    log = write(tmp_path, [sample("a", 0.0), sample("b", 1.0)])
    with pytest.raises(InputError, match=r"no group can be imported: group .*: 1 trajectories"):
        brought(log, tmp_path / "run")
