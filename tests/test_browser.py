"""The groups in the page: which, with what verdict, and all their steps."""

import base64
import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from synthetic import COMMANDS, make_group

from calibrate.outcomes import REWARD_TOLERANCE
from calibrate.rollouts import read_rollouts
from calibrate.rules import Threshold
from calibrate.signals import PREFIX_EDIT_DISTANCE
from collect.store import committed_parts, open_run
from collect.trajectory import Decision, Group
from reports import browser
from reports.browser import Replayed, Shelf, shelve

SAME, OTHER = [COMMANDS[0]] * 4, [COMMANDS[1]] * 4
SIGNAL = PREFIX_EDIT_DISTANCE.name


def write(folder: Path, groups: list[Group]) -> Path:
    with open_run(folder, {"model": "tiny"}, {}) as run:
        for group in groups:
            run.add(group)
    return folder


def group(number: int, alike: bool, won: list[bool], decision: Decision | None = None, length: int = 4) -> Group:
    actions = [SAME[:length], SAME[:length] if alike else OTHER[:length]]
    return make_group(random.Random(number), 2, 4, number=number, actions=actions, won=won, decision=decision)


def by_number(shelf: Shelf) -> dict[int, Any]:
    return {int(entry["id"].split("_T")[1].split("#")[0]): entry for entry in shelf.groups}


def detail(entry: Any) -> dict[str, Any]:
    opened: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(entry["packed"]), -zlib.MAX_WBITS))
    return opened


def test_replayed_verdicts_are_those_of_the_rule(tmp_path: Path) -> None:
    groups = [
        group(0, alike=True, won=[False, False]),  # flagged, zero variance
        group(1, alike=True, won=[False, True]),  # flagged, mixed
        group(2, alike=False, won=[True, True]),  # not flagged, zero variance
        group(3, alike=False, won=[True, False]),  # not flagged, mixed
        group(4, alike=True, won=[True, True], length=2),  # flagged, but over at K = 2
    ]
    run = write(tmp_path / "run", groups)
    rule = Threshold(signal=SIGNAL, step=2, threshold=0.5)
    shelf = shelve(run, "run", SIGNAL, Replayed(rule, read_rollouts(run, REWARD_TOLERANCE)))
    verdicts = {number: entry["verdict"] for number, entry in by_number(shelf).items()}
    assert verdicts == {0: "right", 1: "wrong", 2: "missed", 3: "kept", 4: "over"}
    assert by_number(shelf)[1]["gate"] == {
        "step": 2,
        "score": 0.0,
        "threshold": 0.5,
        "flagged": True,
        "made": "replayed",
    }


def test_recorded_decisions_go_before_replayed_ones(tmp_path: Path) -> None:
    def decided(flagged: bool, *, enforced: bool = False, audited: bool = False) -> Decision:
        return Decision(2, 0.25, 0.5, flagged, enforced, audited)

    groups = [
        group(0, alike=True, won=[False, False], decision=decided(True, enforced=True), length=2),
        group(1, alike=True, won=[False, False], decision=decided(True, audited=True)),
        group(2, alike=True, won=[True, False], decision=decided(False)),
    ]
    run = write(tmp_path / "run", groups)
    found = by_number(shelve(run, "run", SIGNAL, None))
    assert {n: (e["verdict"], e["gate"]["made"]) for n, e in found.items()} == {
        0: ("unknown", "live"),
        1: ("right", "audited"),
        2: ("kept", "watched"),
    }
    assert found[0]["outcome"] == "cut"


def test_a_group_opens_to_its_steps(tmp_path: Path) -> None:
    made = make_group(random.Random(5), 3, 6, number=1)
    entry = shelve(write(tmp_path / "run", [made]), "run", SIGNAL, None).groups[0]
    opened = detail(entry)
    texts = opened["texts"]
    assert len(set(texts)) == len(texts)
    for shown, trajectory in zip(opened["trajectories"], made.trajectories, strict=True):
        assert [texts[place] for place in shown["actions"]] == list(trajectory.actions)
        assert [texts[place] for place in shown["seen"]] == [step.observation for step in trajectory.steps]
        assert [texts[place] for place in shown["said"]] == [step.reply for step in trajectory.steps]
        assert texts[shown["final"]] == trajectory.final_observation
        assert (shown["won"], shown["ending"]) == (trajectory.won, trajectory.ending)


def test_the_signal_above_a_group_is_that_of_calibrate(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [make_group(random.Random(n), 4, 6, number=n) for n in range(5)])
    sample = read_rollouts(run, REWARD_TOLERANCE)
    for name in (SIGNAL, "observations_reached"):
        shelf = shelve(run, "run", name, None)
        for place, group_id in enumerate(sample.group_ids):
            (line,) = (entry["signal"] for entry in shelf.groups if entry["id"] == group_id)
            assert line == pytest.approx(sample.signals[name][place, : len(line)].tolist(), abs=1e-4)


def test_what_does_not_fit_is_left_out_the_same_whenever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(tmp_path / "run", [make_group(random.Random(n), 2, 4, number=n) for n in range(30)])
    monkeypatch.setattr(browser, "MOST_GROUPS", 12)
    shelf = shelve(run, "run", SIGNAL, None)
    assert (len(shelf.groups), shelf.of) == (12, 30)
    assert shelve(run, "run", SIGNAL, None).groups == shelf.groups
    monkeypatch.setattr(browser, "MOST_BYTES", 6_000)
    fewer = shelve(run, "run", SIGNAL, None)
    assert 0 < len(fewer.groups) < 12
    assert {entry["id"] for entry in fewer.groups} < {entry["id"] for entry in shelf.groups}


def test_of_a_run_that_is_being_written_the_groups_that_were_there_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run", [make_group(random.Random(n), 2, 4, number=n) for n in range(3)])
    later = iter(range(3, 30))

    def meanwhile(folder: Path, table: str) -> list[Path]:
        write(folder, [make_group(random.Random(0), 2, 4, number=next(later))])
        return committed_parts(folder, table)

    monkeypatch.setattr(browser, "committed_parts", meanwhile)
    shelf = shelve(run, "run", SIGNAL, None)
    assert (len(shelf.groups), shelf.of) == (3, 3)
