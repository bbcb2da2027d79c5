import json
import math
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gates import D, make_gate
from samples import make_sample
from synthetic import make_group

from calibrate.convention import Convention
from calibrate.edit_distance import prefix_edit_distance_at
from calibrate.fit import apply
from calibrate.gate import Gate, load, load_for, save
from calibrate.gate import make_gate as gate_of
from calibrate.prefixes import Prefix
from calibrate.rules import Either, Learned, Sequential, Stage, Term, Threshold
from calibrate.signals import REGISTRY, Signal
from collect.errors import InputError
from collect.store import RunInfo

TERM = {"signal": D, "mean": 0.1, "scale": 0.5, "weight": 2.0}
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


@pytest.mark.parametrize(
    ("prefixes", "told"),
    [
        (["look around"] * 3, r"prefixes\[0\] is of type str; give the list of the actions"),
        ("abc", "prefixes are of type str; give a list"),
        ("look around", "prefixes are of type str; give a list"),
        (None, "prefixes are of type NoneType; give a list"),
        ([["look"] * 3, None, ["look"] * 3], r"prefixes\[1\] is of type NoneType"),
        ([["look"] * 3, ["look", None, "go"], ["look"] * 3], r"prefixes\[1\] .*one of its actions is not text"),
        ([Prefix("look around")] * 3, r"prefixes\[0\] .*its actions are of type str; give a list"),
        ([["look"], ["look", "go"], []], "says that a trajectory still runs, and none has taken 3 steps"),
    ],
)
def test_what_is_no_group_of_prefixes_is_refused_in_one_line(prefixes: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as raised:
        make_gate().decide(prefixes, eligible=True)
    assert "\n" not in str(raised.value)


def test_a_group_that_is_over_may_have_ended_before_the_step() -> None:
    assert make_gate().decide([["look"], ["look"], []], eligible=False).step == 3


@pytest.mark.parametrize("eligible", [[False, False], [], "no", None, 1])
def test_eligible_is_one_bool(eligible: Any) -> None:
    with pytest.raises(InputError, match="give one bool: whether at least one trajectory still runs"):
        make_gate().decide(ALIKE, eligible=eligible)


def test_what_is_enforced_is_a_bool_also_where_numpy_said_eligible() -> None:
    for eligible in (True, False):
        assert make_gate().decide(ALIKE, eligible=np.bool_(eligible)).enforced is eligible  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [3.0, "3", True, 2, "2\n3", 10**400])
def test_a_step_that_the_gate_does_not_have_is_refused_in_one_line(step: Any) -> None:
    told = str(step).replace("\n", " ")
    with pytest.raises(InputError, match=f"decides at K = 3, not {told}; give"):
        make_gate().decide(ALIKE, eligible=True, step=step)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_trajectories_are_no_group(count: int) -> None:
    with pytest.raises(InputError, match=f"at least 2 trajectories, not {count}"):
        make_gate(group_size=None).decide(ALIKE[:count], eligible=True)


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
        (
            {"rule": {"kind": "threshold", "signal": D, "step": 30, "threshold": 0.1}},
            "step 30 is not under the horizon",
        ),
        (
            {"rule": {"kind": "either", "signal": D, "step": 30, "threshold": 0.1, "ended": 0.5}},
            "not under the horizon",
        ),
        ({"rule": {"kind": "sequential", "signal": D, "stages": [STAGES[0], STAGES[1] | {"step": 40}]}}, "step 40"),
        (
            {"rule": {"kind": "learned", "step": 30, "threshold": 0.5, "intercept": 0.0, "terms": []}},
            "not under the hor",
        ),
        (
            {"rule": {"kind": "threshold", "signal": D, "step": 2**63, "threshold": 0.1}},
            "less than or equal to 2147483647",
        ),
        ({"horizon": 2**63}, "horizon"),
        (
            {"rule": {"kind": "threshold", "signal": D, "step": 3, "threshold": 1.00001}},
            "outside the range of prefix_edit",
        ),
        (
            {"rule": {"kind": "either", "signal": D, "step": 3, "threshold": 1e9, "ended": 0.5}},
            "outside the range of prefix_edit",
        ),
        (
            {"rule": {"kind": "threshold", "signal": "mean_logprob", "step": 3, "threshold": 0.1}},
            "mean_logprob, at most 0",
        ),
        (
            {"rule": {"kind": "sequential", "signal": D, "stages": [{"step": 2, "threshold": -0.1}]}},
            "outside the range",
        ),
        (
            {"rule": {"kind": "learned", "step": 3, "threshold": 0.5, "intercept": 0.0, "terms": [TERM, TERM]}},
            "two terms",
        ),
        (
            {
                "rule": {
                    **{"kind": "learned", "step": 3, "threshold": 0.5, "intercept": 0.0},
                    "terms": [TERM | {"scale": 1e-300}],
                }
            },
            "terms.0.scale: 1e-300 is under 1e-100, with which scores overflow",
        ),
        ({"group_size": 10**400}, "group_size"),
        ({"target_precision": 10**400}, "target_precision"),
        ({"rule": {"kind": "threshold", "signal": D, "step": "3", "threshold": 0.1}}, "step"),
        ({"rule": {"kind": "threshold", "signal": D, "step": 3, "threshold": True}}, "rule.threshold.threshold"),
        ({"group_size": "10"}, "group_size"),
        ({"target_precision": True}, "target_precision"),
        ({"certified": 0}, "certified"),
        ({"format_version": None}, "no format_version"),
        ({"format_version": True}, "no format_version"),
        ({"format_version": 2.5}, "newer version"),
        (
            {"sur\nprise": 1},
            "sur.prise: .*; upgrade if a newer version of selective-rollout wrote it, else fit it again",
        ),
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


def written(path: Path, changes: dict[str, Any], part: str = "") -> Path:
    """The file of a gate, changed: in its fields, or in those of a part of it."""
    content = json.loads(make_gate().model_dump_json())
    changed = content[part] | changes if part else changes
    path.write_text(json.dumps(content | ({part: changed} if part else changed)))
    return path


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"false_positives": 5}, "true_positives and false_positives do not add up to taken"),
        ({"groups": 16, "tasks": 16, "zero_variance": 16, "population": 16}, "taken is over groups"),
        ({"zero_variance": 12}, "true_positives is over zero_variance"),
        ({"tasks": 101}, "tasks is over groups"),
        ({"precision": 0.7647}, "precision is not true_positives / taken"),
        ({"precision": None}, "precision is not true_positives / taken"),
        (
            {"taken": 0, "cut": 0, "true_positives": 0, "false_positives": 0},
            "precision is a number, and nothing is taken",
        ),
        ({"precision_low": 0.8}, "precision lies outside"),
        ({"saving_high": 0.1}, "saving lies outside"),
        ({"net_saving_low": 0.06}, "net_saving lies outside"),
        ({"tasks": 0}, "there are groups, and no tasks"),
        ({"cut": 18}, "cut is over taken"),
        ({"cut": 16}, "evidence takes other groups than it cuts, and the convention is eligible"),
        ({"population": 16}, "taken is over population"),
        ({"recall": 0.0}, "recall and true_positives are not 0 together"),
        ({"recall": None}, "recall and true_positives are not 0 together"),
        ({"recall": 0.3}, "is under recall_of_all"),
        ({"recall_of_all": 0.3}, "recall_of_all is not true_positives / zero_variance"),
        ({"recall_of_all": None}, "recall_of_all is not true_positives / zero_variance"),
        ({"groups": 10**400, "taken": 10**400, "true_positives": 10**400}, "groups: Input should be less"),
    ],
)
def test_evidence_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        load(written(tmp_path / "gate.json", change, "evidence"))


def test_evidence_without_a_group_taken_reads(tmp_path: Path) -> None:
    nothing = {"taken": 0, "cut": 0, "true_positives": 0, "false_positives": 0, "precision": None}
    none = nothing | {"zero_variance": 0, "recall": None, "recall_of_all": None}
    for change in (nothing | {"recall": 0.0, "recall_of_all": 0.0}, none):
        assert load(written(tmp_path / "gate.json", change, "evidence")).evidence.taken == 0


CERTIFICATE = {
    **{"confidence": 0.95, "precision": 0.75, "tasks": 60, "cuts": 40, "true_positives": 39},
    # 39 or 40 hits in 40 draws of chance 0.75; 0.05 / 100 after Bonferroni.
    **{"p_value": 0.75**40 + 40 * 0.25 * 0.75**39, "level": 0.0005, "tests": 100},
}


@pytest.mark.parametrize(
    ("change", "others", "told"),
    [
        ({}, {"target_precision": 0.7}, "another precision than target_precision"),
        ({"true_positives": 41}, {}, "true_positives is over cuts"),
        ({"cuts": 61}, {}, "cuts is over tasks"),
        ({"p_value": 0.0006}, {}, "p_value is over level"),
        ({"p_value": 1e-9}, {}, "p_value is not that of the binomial test"),
        ({"precision": 0.7}, {}, "p_value is not that of the binomial test"),
        ({"cuts": 0, "true_positives": 0, "p_value": 0.0}, {}, "p_value is not that of the binomial test"),
        ({"level": 0.051}, {}, "level is not 1 - confidence divided by one of 1 to tests"),
        ({"level": 0.00049}, {}, "level is not 1 - confidence divided by one of 1 to tests"),
        ({"level": 0.001, "tests": 10**400}, {}, "tests: Input should be less"),
        ({"tasks": 101}, {}, "the certificate is of more tasks than the evidence"),
        ({}, {"convention": "paper"}, "paper's convention"),
    ],
)
def test_a_certificate_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, Any], others: dict[str, Any], told: str
) -> None:
    fields = {"certified": True, "certificate": CERTIFICATE}
    assert load(written(tmp_path / "right.json", fields)).certified
    fields["certificate"] = CERTIFICATE | change
    with pytest.raises(InputError, match=told):
        load(written(tmp_path / "wrong.json", fields | others))


def test_a_threshold_just_beyond_the_range_is_one_that_takes_all(tmp_path: Path) -> None:
    for gate in (make_gate(threshold=1 + 1e-12), make_gate(signal="repetition", threshold=-1e-12)):
        save(gate, tmp_path / "gate.json")
        assert load(tmp_path / "gate.json") == gate


@pytest.mark.parametrize(("signal", "threshold"), [(D, -1e9), ("repetition", 1e9)])
def test_the_threshold_of_the_or_rule_may_be_beyond_all_where_only_terminations_flag(
    tmp_path: Path, signal: str, threshold: float
) -> None:
    gate = make_gate(rule=Either(signal=signal, step=3, threshold=threshold, ended=0.5))
    save(gate, tmp_path / "gate.json")
    assert load(tmp_path / "gate.json") == gate


def test_a_learned_gate_without_terms_still_reads(tmp_path: Path) -> None:
    gate = make_gate(rule=Learned(step=3, threshold=0.5, intercept=0.3, terms=()))
    save(gate, tmp_path / "gate.json")
    assert load(tmp_path / "gate.json").decide(ALIKE, eligible=True).score == pytest.approx(1 / (1 + math.exp(-0.3)))


def test_a_net_saving_of_minus_infinity_is_null(tmp_path: Path) -> None:
    gate = load(written(tmp_path / "gate.json", {"net_saving": None}, "evidence"))
    assert gate.evidence.net_saving is None


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_bytes(b"\xef\xbb\xbf" + make_gate().model_dump_json().encode())
    assert load(path) == make_gate()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format_version": 1}', b"NaN", b"[" * 200_000])
def test_a_file_that_is_no_gate_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gate.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_a_missing_gate_and_an_unwritable_place_are_the_users_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: no such file; give a gate\.json that sr calibrate wrote$"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"cannot be written \(.*\); make room or take another folder$"):
        save(make_gate(), tmp_path / "no" / "gate.json")


def test_a_gate_of_the_first_format_still_reads(tmp_path: Path) -> None:
    old = json.loads(make_gate().model_dump_json())
    old |= old.pop("rule") | {"format_version": 1, "certified": False}
    old["evidence"] |= {"eligible": 94, "eligible_exactly": True}
    for name in ("certificate", "out_of_sample", "temperature", "top_p", "reward_tolerance"):
        del old[name]
    for name in ("tasks", "population"):
        del old["evidence"][name]
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(old))
    assert load(path) == make_gate()


def test_a_gate_from_before_its_sampling_was_recorded_still_reads(tmp_path: Path) -> None:
    old = json.loads(make_gate().model_dump_json())
    for name in ("temperature", "top_p", "reward_tolerance"):
        del old[name]
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(old))
    gate = load(path)
    assert (gate.temperature, gate.top_p, gate.reward_tolerance) == (None, None, 1e-8)


# Made from a sample


def fitted(scores: list[float], configuration: dict[str, Any] | None = None, **more: Any) -> Gate:
    """What a gate at 0.5 is on three groups, the last of them informative."""
    sample = make_sample([[score] for score in scores], ["all_fail", "all_fail", "mixed"])
    rule = Threshold(signal=D, step=1, threshold=0.5)
    run = RunInfo(
        schema_version=1,
        command="collect",
        created=datetime(2026, 1, 2, tzinfo=UTC),
        configuration=configuration or {},
        facts={},
    )
    return gate_of(
        rule,
        sample,
        None if configuration is None else run,
        convention=Convention.ELIGIBLE,
        target_precision=0.6,
        evidence=apply(sample, rule, Convention.ELIGIBLE),
        out_of_sample=None,
        certificate=None,
        **more,
    )


def test_a_gate_records_how_its_rollouts_were_sampled_and_their_rewards_compared() -> None:
    gate = fitted([0.1, 0.1, 0.9], {"model": "tiny", "temperature": 1, "top_p": 0.95}, reward_tolerance=0.01)
    assert (gate.temperature, gate.top_p, gate.reward_tolerance) == (1.0, 0.95, 0.01)
    gate = fitted([0.1, 0.1, 0.9], {"format": "verl", "temperature": "hot"})
    assert (gate.temperature, gate.top_p, gate.reward_tolerance) == (None, None, 1e-8)
    assert fitted([0.1, 0.1, 0.9], reward_tolerance=None).reward_tolerance is None


def test_the_net_saving_of_a_gate_that_leaves_no_informative_group_is_null(tmp_path: Path) -> None:
    gate = fitted([0.1, 0.1, 0.1])
    assert gate.evidence.net_saving is None
    save(gate, tmp_path / "gate.json")
    assert load(tmp_path / "gate.json") == gate


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
    with pytest.raises(InputError, match=r"reads observations, and prefixes\[0\] .* 0 observations for 3 actions"):
        gate.decide(ALIKE, eligible=True)


@pytest.mark.parametrize("signal", REGISTRY, ids=lambda signal: signal.name)
def test_every_signal_decides_on_the_steps_of_the_rollout_loop(signal: Signal) -> None:
    group = make_group(random.Random(1), 3, 6)
    under_all = -1e9 if math.isinf(signal.lowest) else -1e-9
    gate = make_gate(signal=signal.name, threshold=0.0 if signal.alike == "low" else under_all)
    decision = gate.decide([t.steps[:3] for t in group.trajectories], eligible=True)
    assert decision.score == signal.at_step([Prefix.of(t.steps) for t in group.trajectories], 3)
    assert decision.flagged is (signal.alike == "high")


# For other rollouts


def test_a_gate_for_rollouts_sampled_otherwise_is_doubted(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    save(make_gate(temperature=0.7, top_p=1.0), path)
    same = {"group_size": 3, "horizon": 30, "model": "SmolLM2-135M-Instruct", "adapter": None, "prompt": "act"}
    assert load_for(path, same)[1] == ()
    assert load_for(path, same | {"temperature": 0.7, "top_p": 1})[1] == ()
    _, doubts = load_for(path, same | {"temperature": 1, "top_p": 0.95})
    assert [doubt.removeprefix(f"{path}: ") for doubt in doubts] == [
        "fitted on rollouts with temperature 0.7, not 1: what it promises may not hold",
        "fitted on rollouts with top_p 1, not 0.95: what it promises may not hold",
    ]
    save(make_gate(), path)
    assert load_for(path, same | {"temperature": 1, "top_p": 0.95})[1] == ()


def test_a_gate_of_the_base_model_is_doubted_for_an_adapter_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    here = {"group_size": 3, "horizon": 30, "model": "m", "prompt": "act"}
    for fitted, now, told in (
        (None, None, []),
        ("a1", "a1", []),
        (None, "a1", ["fitted on rollouts with adapter none, not a1"]),
        ("a1", None, ["fitted on rollouts with adapter a1, not none"]),
    ):
        save(make_gate(model="m", adapter=fitted), path)
        doubts = load_for(path, here | {"adapter": now})[1]
        assert list(doubts) == [f"{path}: {difference}: what it promises may not hold" for difference in told]
    # One that was fitted on a table knows no policy at all.
    save(make_gate(model=None, adapter=None), path)
    assert load_for(path, here | {"adapter": "a1"})[1] == ()


# In a trainer


def test_the_example_in_the_documentation_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "calibration.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page.partition("## In a trainer")[2], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    save(make_gate(), Path("gate.json"))
    exec(example, {})
    # The distances of its three pairs at K = 3 are 0, 1 and 1.
    assert capsys.readouterr().out == "cut at K = 3: the group scores 0.222\n"


def test_the_example_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page.partition("## A gate in other trainers")[2], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("runs/qwen").mkdir(parents=True)
    save(make_gate(), Path("runs/qwen/gate.json"))
    here: dict[str, Any] = {}
    exec(example, here)
    assert here["cut"](ALIKE, True) is True  # distances 0, 1 and 1 over three steps are under its threshold
    assert here["cut"]([["a"] * 3, ["b"] * 3, ["c"] * 3], True) is False
    assert here["cut"](ALIKE, False) is False
