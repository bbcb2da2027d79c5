import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from gates import D, make_gate
from synthetic import make_group

from calibrate.edit_distance import prefix_edit_distance_at
from calibrate.gate import load, save
from calibrate.prefixes import Prefix
from calibrate.rules import Either, Learned, Sequential, Stage, Term
from calibrate.signals import REGISTRY, Signal
from collect.errors import InputError

STAGES = [{"step": 2, "threshold": 0.1}, {"step": 3, "threshold": 0.3}]
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
    assert json.loads(path.read_text())["rule"]["threshold"] == 0.1 + 0.2
    assert [p.name for p in tmp_path.iterdir()] == ["gate.json"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rule": {"kind": "threshold", "signal": D, "step": 0, "threshold": 0.1}}, "step"),
        ({"rule": {"kind": "threshold", "signal": D, "step": 3, "threshold": None}}, "threshold"),
        ({"rule": {"kind": "threshold", "signal": "novelty", "step": 3, "threshold": 0.1}}, "unknown signal 'novelty'"),
        ({"rule": {"kind": "oracle"}}, "oracle"),
        ({"rule": {"kind": "sequential", "signal": D, "stages": STAGES[::-1]}}, "ascend"),
        ({"certified": True}, "certified"),
        ({"surprise": 1}, "surprise"),
        ({"format_version": 3}, "newer version"),
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
    with pytest.raises(InputError, match=r"cannot be written \(.*\); make room or take another folder$"):
        save(make_gate(), tmp_path / "no" / "gate.json")


def test_a_gate_of_the_first_format_still_reads(tmp_path: Path) -> None:
    old = json.loads(make_gate().model_dump_json())
    old |= old.pop("rule") | {"format_version": 1, "certified": False}
    old["evidence"] |= {"eligible": 94, "eligible_exactly": True}
    for name in ("certificate", "out_of_sample"):
        del old[name]
    for name in ("tasks", "population"):
        del old["evidence"][name]
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(old))
    assert load(path) == make_gate()


# Gates beyond one threshold, live


def test_a_gate_on_a_signal_whose_high_values_mean_alike_flags_over_its_threshold() -> None:
    gate = make_gate(signal="termination_fraction", threshold=0.3)
    assert gate.decide(ALIKE, eligible=True).flagged  # one of three has ended before step 3
    assert not make_gate(signal="termination_fraction", threshold=1 / 3).decide(ALIKE, eligible=True).flagged


def test_the_or_rule_flags_when_enough_have_ended_whatever_their_distance() -> None:
    apart = [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    for ended, flagged in ((1 / 3, True), (0.5, False)):
        gate = make_gate(rule=Either(signal=D, step=3, threshold=0.1, ended=ended))
        assert gate.decide(apart, eligible=True).flagged is flagged
    assert make_gate(rule=Either(signal=D, step=3, threshold=0.3, ended=1.0)).decide(ALIKE, eligible=True).flagged


def test_a_sequential_gate_decides_at_each_of_its_steps_and_at_no_other() -> None:
    gate = make_gate(rule=Sequential(signal=D, stages=(Stage(step=2, threshold=0.0), Stage(step=3, threshold=0.3))))
    assert gate.steps == (2, 3)
    first, second = (gate.decide(ALIKE, eligible=True, step=step) for step in gate.steps)
    assert (first.step, first.flagged, second.step, second.flagged) == (2, False, 3, True)
    with pytest.raises(InputError, match="decides at K = 2, 3, not 4"):
        gate.decide(ALIKE, eligible=True, step=4)


def test_a_learned_gate_weighs_its_signals_by_the_coefficients_in_its_file(tmp_path: Path) -> None:
    terms = (
        Term(signal=D, mean=0.1, scale=0.5, weight=2.0),
        Term(signal="repetition", mean=0.0, scale=0.25, weight=-1.0),
    )
    gate = make_gate(rule=Learned(step=2, threshold=0.5, intercept=0.3, terms=terms))
    path = tmp_path / "gate.json"
    save(gate, path)
    prefixes = [Prefix(["a", "b"], ["x", "x"]), Prefix(["a", "c"], ["x", "y"]), Prefix(["a"], ["x"])]
    # Distances at K = 2: 1, 1, 1 over 3 pairs of 2 steps; one of five steps returns.
    expected = 1 / (1 + math.exp(-(0.3 + 2 * (0.5 - 0.1) / 0.5 - 0.2 / 0.25)))
    assert load(path).decide(prefixes, eligible=True).score == pytest.approx(expected)


def test_what_a_gate_reads_must_be_there() -> None:
    gate = make_gate(signal="repetition")
    with pytest.raises(InputError, match="reads repetition, and a prefix lacks its observations"):
        gate.decide(ALIKE, eligible=True)


@pytest.mark.parametrize("signal", REGISTRY, ids=lambda signal: signal.name)
def test_every_signal_decides_on_the_steps_of_the_rollout_loop(signal: Signal) -> None:
    group = make_group(random.Random(1), 3, 6)
    gate = make_gate(signal=signal.name, threshold=0.0 if signal.alike == "low" else -1e9)
    decision = gate.decide([t.steps[:3] for t in group.trajectories], eligible=True)
    assert decision.score == signal.at_step([Prefix.of(t.steps) for t in group.trajectories], 3)
    assert decision.flagged is (signal.alike == "high")
