import json
import random
from pathlib import Path
from typing import Any

import pytest

from calibrate.convention import Convention
from calibrate.gate import Evidence, Gate, load, save, versions
from calibrate.signals import prefix_edit_distance_at
from collect.errors import InputError

EVIDENCE = Evidence(
    groups=100,
    zero_variance=39,
    eligible=94,
    eligible_exactly=True,
    taken=17,
    cut=17,
    true_positives=13,
    false_positives=4,
    precision=13 / 17,
    precision_low=0.5,
    precision_high=0.93,
    recall=13 / 33,
    recall_of_all=13 / 39,
    saving_unit="tokens",
    saving=0.119,
    saving_low=0.06,
    saving_high=0.16,
    net_saving=0.057,
    net_saving_low=None,
    net_saving_high=None,
    break_even_precision=0.6,
    advantage_l2_kept=0.9667,
)


def make_gate(**changes: Any) -> Gate:
    fields: dict[str, Any] = {
        "signal": "prefix_edit_distance_mean",
        "step": 3,
        "threshold": 0.1 + 0.2,
        "group_size": 3,
        "horizon": 30,
        "model": "SmolLM2-135M-Instruct",
        "adapter": None,
        "prompt": "act",
        "convention": Convention.ELIGIBLE,
        "target_precision": 0.75,
        "evidence": EVIDENCE,
        "data": "0" * 64,
        "versions": versions(),
    }
    return Gate(**(fields | changes))


ALIKE = [["look", "go", "take"], ["look", "go", "take"], ["look", "go"]]  # distances 0, 1, 1 over 3 pairs of 3 steps


def test_a_group_under_the_threshold_is_flagged_and_cut() -> None:
    decision = make_gate().decide(ALIKE, eligible=True)
    assert decision.score == 2 / 9
    assert (decision.step, decision.threshold) == (3, 0.1 + 0.2)
    assert (decision.flagged, decision.enforced, decision.audited) == (True, True, False)


def test_a_group_at_the_threshold_is_not_flagged() -> None:
    decision = make_gate(threshold=2 / 9).decide(ALIKE, eligible=True)
    assert not decision.flagged
    assert not decision.enforced


def test_a_group_that_is_over_is_flagged_but_not_cut() -> None:
    decision = make_gate().decide(ALIKE, eligible=False)
    assert decision.flagged
    assert not decision.enforced


def test_actions_after_the_step_do_not_count() -> None:
    longer = [[*prefix, *"xyz"[i:]] for i, prefix in enumerate(ALIKE[:2])] + [ALIKE[2]]
    assert make_gate().decide(longer, eligible=True) == make_gate().decide(ALIKE, eligible=True)


def test_a_live_decision_scores_as_calibration_does() -> None:
    rng = random.Random(4)
    prefixes = [[rng.choice("abcd") for _ in range(rng.randint(0, 10))] for _ in range(8)]
    gate = make_gate(step=10, group_size=8)
    assert gate.decide(prefixes, eligible=True).score == prefix_edit_distance_at(prefixes, 10)


def test_a_group_of_another_size_is_refused_unless_the_gate_knows_no_size() -> None:
    with pytest.raises(InputError, match="groups of 3 and got 2"):
        make_gate().decide(ALIKE[:2], eligible=True)
    assert make_gate(group_size=None).decide(ALIKE[:2], eligible=True).score == 0.0


def test_a_gate_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    save(make_gate(), path)
    assert load(path) == make_gate()
    assert json.loads(path.read_text())["threshold"] == 0.1 + 0.2
    assert [p.name for p in tmp_path.iterdir()] == ["gate.json"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"step": 0}, "step"),
        ({"threshold": None}, "threshold"),
        ({"signal": "novelty"}, "unknown signal 'novelty'"),
        ({"certified": True}, "certified"),
        ({"surprise": 1}, "surprise"),
        ({"format_version": 2}, "newer version"),
    ],
)
def test_a_gate_that_was_tampered_with_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(json.loads(make_gate().model_dump_json()) | change))
    with pytest.raises(InputError, match=told) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format_version": 1}', b"NaN"])
def test_a_file_that_is_no_gate_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gate.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_a_missing_gate_and_an_unwritable_place_are_the_users_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be written"):
        save(make_gate(), tmp_path / "no" / "gate.json")
