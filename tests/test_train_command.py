"""`sr train` as a user runs it, on a policy so small that a run takes seconds, with real games."""

import json
import math
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from gates import make_gate
from safetensors.torch import load_file
from synthetic import make_group
from test_rollout import Faulty
from tiny_policy import make_tiny_policy
from typer.testing import CliRunner
from user import SR

import sr
from calibrate.gate import save
from collect.engine import Completion, Engine, Request, open_engine
from collect.errors import EngineFault, InputError, SelectiveRolloutError
from collect.games import Game, find_games
from collect.policy import Policy
from collect.schema import EVALUATIONS, ITERATIONS
from collect.store import open_run, read_run, scan
from train import session
from train.loop import worth_keeping

CLOCKS = [name for name in ITERATIONS.arrow.names if name.startswith("seconds")]
NOT_COMPARED = [*CLOCKS, "peak_memory_bytes", "groups_restored"]


@dataclass(frozen=True)
class Tiny:
    """A model, two games that it wins now and then, and two that it does not know."""

    model: Path
    games: Path
    held_out: Path

    @property
    def options(self) -> list[object]:
        """Options of a run that takes a second an iteration."""
        return [
            *("--model", self.model, "--games", self.games, "--prompt", "act", "--max-tokens", 12),
            *("--temperature", 0.9, "--learning-rate", 1e-3, "--group-size", 3, "--max-steps", 7, "--deterministic"),
            *("--groups", 3, "--iterations", 2, "--eval-every", 0, "--threshold", "off"),
        ]


@pytest.fixture(scope="module")
def tiny(small_policy: Policy, games_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    games = find_games("train", games_root)[:2]
    for game in games:
        shutil.copytree(game.path.parent, folder / "games" / "train" / game.id)
    model = make_tiny_policy(small_policy.model, games, folder / "model")
    return Tiny(model, folder / "games" / "train", games_root / "valid_unseen")


def train(*arguments: object) -> str:
    """Run the command in this process; gives what it printed."""
    done = CliRunner().invoke(sr.app, ["train", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(run: Path, table: str = "iterations") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(run / f"{table}.parquet").to_pylist()
    return found


def comparable(run: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in NOT_COMPARED} for row in rows(run)]


def newest_adapter(run: Path) -> bytes:
    return (max((run / "adapters").iterdir()) / "adapter_model.safetensors").read_bytes()


def trajectories(run: Path) -> pl.DataFrame:
    return scan(run, "trajectories").sort("group_id", "trajectory").collect()


EVERYTHING = [
    *("--iterations", 3, "--threshold", 0.5, "--at-step", 2, "--audit", 0),
    *("--refill", 2, "--skip-prompts", "--eval-every", 2, "--eval-games", 2),
]


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with everything at once, never interrupted, and what it printed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    printed = train(run, *tiny.options, *EVERYTHING, "--eval-on", tiny.held_out)
    return run, printed


@pytest.fixture(scope="module")
def ungated(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a gate."""
    run = tmp_path_factory.mktemp("ungated") / "run"
    train(run, *tiny.options)
    return run


# What it does


def test_a_run_learns_and_leaves_what_it_promises(whole: tuple[Path, str]) -> None:
    run, printed = whole
    iterations = rows(run)

    assert [row["iteration"] for row in iterations] == [1, 2, 3]
    assert any(row["updated"] for row in iterations)
    assert [row["iteration"] for row in rows(run, "evaluations")] == [0, 2, 3]
    assert [path.name for path in (run / "checkpoint").iterdir()] == ["iteration-000003"]
    assert not [path for path in run.rglob("*") if path.name.endswith(".tmp")]
    assert printed.count("evaluation after iteration") == 3
    assert pq.read_schema(run / "iterations.parquet").names == ITERATIONS.arrow.names
    assert pq.read_schema(run / "evaluations.parquet").names == EVALUATIONS.arrow.names


def test_of_the_adapters_the_last_and_those_that_were_evaluated_are_kept(whole: tuple[Path, str]) -> None:
    run, _ = whole
    progress = json.loads((run / "checkpoint" / "iteration-000003" / "progress.json").read_text())
    updated = [row["iteration"] for row in rows(run) if row["updated"]]
    kept = {int(path.name) for path in (run / "adapters").iterdir()}
    assert kept == {max(i for i in updated if i <= evaluated) for evaluated in (2, 3)}
    assert progress["adapter"] == f"adapters/{updated[-1]:06d}"


def test_an_adapter_that_was_evaluated_after_an_iteration_without_an_update_is_kept(tmp_path: Path) -> None:
    evaluations = [{"iteration": iteration} for iteration in (0, 2, 5)]
    for number in (1, 3, 4, 6, 8):
        (tmp_path / "adapters" / f"{number:06d}").mkdir(parents=True)
    # Nothing was learned in iterations 2 and 5; 8 was interrupted, and taught nothing when it was done again.
    assert worth_keeping(tmp_path, "000006", evaluations) == {"000001", "000004", "000006"}
    assert worth_keeping(tmp_path, None, evaluations) == set()
    assert worth_keeping(tmp_path / "none", None, evaluations) == set()


def test_an_iteration_counts_what_its_groups_hold(whole: tuple[Path, str]) -> None:
    run, _ = whole
    groups, steps = scan(run, "groups").collect(), scan(run, "steps").collect()
    of = dict(zip(groups["group_id"], groups["policy_version"] + 1, strict=True))
    tokens = trajectories(run).with_columns(
        pl.col("group_id").replace_strict(of).alias("iteration"), pl.col("logprobs").list.len().alias("tokens")
    )
    for row in rows(run):
        mine = groups.filter(pl.col("policy_version") == row["iteration"] - 1)
        cut = mine.filter(pl.col("gate_enforced").fill_null(value=False))
        flat = mine.filter(
            ~pl.col("gate_enforced").fill_null(value=False)
            & (pl.col("rewards").list.max() == pl.col("rewards").list.min())
        )
        assert row["groups"] == mine.height
        assert row["groups_cut"] == cut.height
        assert row["groups_audited"] == mine["gate_audited"].sum()
        assert row["groups_zero_variance"] == flat.height
        assert row["groups_refilled"] <= mine.filter(pl.col("visit") < 0).height
        assert row["tokens_sampled"] == tokens.filter(pl.col("iteration") == row["iteration"])["tokens"].sum()
        assert row["batch_groups"] <= 3
        assert row["tokens_trained"] <= row["tokens_sampled"]
        phases = sum(row[f"seconds_{phase}"] for phase in ("rollout", "update", "swap", "evaluation", "other"))
        assert row["seconds"] == pytest.approx(phases)
    assert sum(row["steps"] for row in rows(run)) == steps.height


def test_no_number_of_the_log_is_nan(whole: tuple[Path, str]) -> None:
    run, _ = whole
    for row in [*rows(run), *rows(run, "evaluations")]:
        assert not [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]


def test_an_evaluation_is_greedy_on_the_held_out_games(whole: tuple[Path, str], tiny: Tiny) -> None:
    run, _ = whole
    first, *_ = evaluations = rows(run, "evaluations")
    held_out = {game.id for game in find_games("valid_unseen", tiny.held_out)}
    assert set(first["game_ids"]) == held_out
    assert all(row["game_ids"] == first["game_ids"] for row in evaluations)
    assert all(row["won"] == sum(row["game_won"]) and row["games"] == 2 for row in evaluations)
    assert all(0 <= row["success_low"] <= row["success"] <= row["success_high"] <= 1 for row in evaluations)


def test_run_json_says_what_was_resolved(whole: tuple[Path, str], tiny: Tiny) -> None:
    configuration, options = read_run(whole[0]).configuration, read_run(whole[0]).facts["options"]
    assert (configuration["arm"], configuration["seed"], configuration["top_p"]) == ("on", 7, 1.0)
    assert (configuration["engine"], configuration["dtype"]) == ("transformers", "fp32")
    assert "iterations" not in configuration
    assert (options["iterations"], options["model"], options["adapter"]) == (3, str(tiny.model), "none")


def test_a_run_json_given_as_config_does_the_same_again(whole: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = whole
    train(tmp_path / "again", "--config", run / "run.json", "--iterations", 1, "--eval-every", 0)
    (again,) = comparable(tmp_path / "again")
    assert again == comparable(run)[0]


# Never lost


def started(run: Path, *arguments: object) -> "subprocess.Popen[str]":
    command = [str(SR), "train", str(run), *map(str, arguments), "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(process: "subprocess.Popen[str]", is_there: Callable[[], bool]) -> None:
    """Wait until something is there that the process makes."""
    until = time.monotonic() + 120
    while not is_there():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.005)


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def parts(run: Path) -> int:
    return len(list((run / "groups").glob("part-*")))


def test_killed_in_the_middle_and_resumed_it_ends_with_the_same_bytes(
    whole: tuple[Path, str], tiny: Tiny, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = started(run, *tiny.options, *EVERYTHING, "--eval-on", tiny.held_out)
    wait_for(process, (run / "checkpoint" / "iteration-000001").exists)
    before = parts(run)
    # Groups of the second iteration are committed; it has neither learned from them nor been checkpointed.
    wait_for(process, lambda: parts(run) > before)
    kill(process)
    assert len(rows(run)) == 1

    assert "going on after iteration 1" in train(run, "--resume")
    assert newest_adapter(run) == newest_adapter(whole[0])
    assert comparable(run) == comparable(whole[0])
    assert trajectories(run).equals(trajectories(whole[0]))
    assert sum(row["groups_restored"] for row in rows(run)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.4, 0.9, 1.5, 2.3, 3.4, 5.0])
def test_killed_at_any_moment_twice_and_resumed_it_ends_with_the_same_bytes(
    whole: tuple[Path, str], tiny: Tiny, tmp_path: Path, after: float
) -> None:
    run = tmp_path / "run"
    process = started(run, *tiny.options, *EVERYTHING, "--eval-on", tiny.held_out)
    wait_for(process, (run / "run.json").exists)
    time.sleep(after)
    kill(process)
    resumed = started(run, "--resume")
    time.sleep(6 + 2 * after)
    kill(resumed)

    train(run, "--resume")
    assert newest_adapter(run) == newest_adapter(whole[0])
    assert comparable(run) == comparable(whole[0])


def test_a_finished_run_does_nothing_more_until_it_is_told_to_go_further(
    whole: tuple[Path, str], tiny: Tiny, tmp_path: Path
) -> None:
    run = shutil.copytree(whole[0], tmp_path / "run")
    assert "all 3 iterations are done" in train(run, "--resume")
    train(run, "--resume", "--iterations", 4, "--quiet")
    assert [row["iteration"] for row in rows(run)] == [1, 2, 3, 4]


def test_another_setting_on_resume_is_refused(whole: tuple[Path, str]) -> None:
    with pytest.raises(InputError, match=r"^--seed 8: the run has 7; a resumed run keeps its settings$"):
        train(whole[0], "--resume", "--seed", 8)


def test_with_other_games_than_it_began_with_a_run_does_not_go_on(ungated: Path, tiny: Tiny, tmp_path: Path) -> None:
    run = shutil.copytree(ungated, tmp_path / "run")
    games = shutil.copytree(tiny.games, tmp_path / "games")
    (run / "run.json").write_text((run / "run.json").read_text().replace(str(tiny.games), str(games)))
    session.planned_again(run, {})
    shutil.rmtree(next(games.iterdir()))
    with pytest.raises(InputError, match="does not hold what the run began with; restore that, or begin another"):
        train(run, "--resume", "--iterations", 3)


def test_with_other_groups_than_it_began_with_a_frozen_run_is_not_learned_from_further(
    ungated: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(ungated, tmp_path / "source")
    flags = {"from_run": str(source), "engine": "transformers", "threshold": "off"}
    begun = session.plan(None, flags, print)
    options = begun.settings.options(begun.policy)
    assert session.continued(options, begun.configuration, flags) == begun
    with open_run(source, read_run(source).configuration, {}, command="train") as more:
        more.add(make_group(random.Random(0)))
    with pytest.raises(InputError, match=f"--from {source}: does not hold what the run began with"):
        session.continued(options, begun.configuration, flags)


def test_a_run_that_died_before_its_first_checkpoint_does_not_take_another_gate(tiny: Tiny, tmp_path: Path) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate.json"
    save(make_gate(horizon=7, step=2), gate)
    flags = {"model": str(tiny.model), "games": str(tiny.games), "group_size": 3, "horizon": 7, "gate": str(gate)}
    begun = session.plan(None, {**flags, "engine": "transformers"}, print)
    with open_run(run, begun.configuration, {"options": begun.settings.options(begun.policy)}, command="train"):
        pass
    save(make_gate(horizon=7, step=3), gate)
    with pytest.raises(InputError, match=f"^--gate {gate}: is not what it was when the run was planned; restore it$"):
        train(run, "--resume")
    gate.unlink()
    with pytest.raises(InputError, match=f"^--gate {gate}: is not what it was"):
        train(run, "--resume")


def test_a_run_is_not_begun_over_another(whole: tuple[Path, str], tiny: Tiny) -> None:
    with pytest.raises(InputError, match="holds a run already; give --resume"):
        train(whole[0], *tiny.options)


@pytest.mark.parametrize("arguments", [["--resume"], ["RUN", "--resume"], ["RUN", "--resume", "--config", "f.toml"]])
def test_nothing_to_resume_is_said_in_one_line(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        train(*[tmp_path / word if word == "RUN" else word for word in arguments])
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "RUN").exists()


def test_games_to_learn_from_are_not_judged_on(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is learned from too"):
        train(tmp_path / "run", *tiny.options, "--eval-every", 1, "--eval-on", tiny.games)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arms", [[], ["--arms", "off,on", "--seeds", "7"]])
def test_a_gate_that_cannot_decide_is_refused_before_anything_is_written(
    tiny: Tiny, tmp_path: Path, arms: list[str]
) -> None:
    save(make_gate(group_size=8, horizon=7, step=2), tmp_path / "gate.json")
    for gate, complaint in (
        (["--threshold", 5], "--threshold 5: prefix_edit_distance_mean lies in"),
        (["--threshold", "auto", "--gate", tmp_path / "gate.json"], "fitted on groups of 8, not 3"),
    ):
        with pytest.raises(InputError, match=complaint):
            train(tmp_path / "run", *tiny.options, *gate, *arms)
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on(tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = started(run, *tiny.options, "--iterations", 500)
    wait_for(process, (run / "iterations.parquet").exists)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == f"interrupted: go on with sr train {run} --resume\n"


# Several processes


@pytest.mark.slow
def test_two_learners_end_with_the_adapter_of_one(ungated: Path, tiny: Tiny, tmp_path: Path) -> None:
    torchrun = [SR.with_name("torchrun"), "--standalone", "--nproc-per-node", 2, SR]
    command = [*torchrun, "train", tmp_path / "run", *tiny.options, "--quiet"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=300)

    def adapter(run: Path) -> dict[str, torch.Tensor]:
        return load_file(run / "adapters" / "000002" / "adapter_model.safetensors")

    # Sums of gradients are added in another order.
    torch.testing.assert_close(adapter(tmp_path / "run"), adapter(ungated), rtol=0, atol=1e-5)


# The gate


def test_matched_arms_play_the_same_games_with_the_same_requests(tiny: Tiny, tmp_path: Path) -> None:
    one = [*tiny.options, "--at-step", 2, "--iterations", 1]
    train(tmp_path / "shadow", *one, "--threshold", 0.5, "--gate-mode", "shadow")
    looked = scan(tmp_path / "shadow", "groups").sort("group_id").collect()
    # So that the gate cuts the group that agrees most, and not the one that agrees least.
    threshold = (looked["gate_score"].min() + looked["gate_score"].max()) / 2  # type: ignore[operator]
    train(tmp_path, *one, "--threshold", threshold, "--audit", 0, "--arms", "off,on", "--seeds", "7")
    off, on = tmp_path / "off-7", tmp_path / "on-7"
    decided = scan(on, "groups").sort("group_id").collect()
    flagged = decided.filter(pl.col("gate_enforced"))["group_id"].to_list()

    assert 0 < len(flagged) < 3
    assert [read_run(run).configuration["arm"] for run in (off, on)] == ["off", "on"]
    assert trajectories(off).equals(trajectories(tmp_path / "shadow"))
    untouched = ~pl.col("group_id").is_in(flagged)
    assert trajectories(off).filter(untouched).equals(trajectories(on).filter(untouched))
    for ungated, cut in zip(
        trajectories(off).filter(~untouched).iter_rows(named=True),
        trajectories(on).filter(~untouched).iter_rows(named=True),
        strict=True,
    ):
        assert cut["actions"] == ungated["actions"][:2]
    assert looked["gate_score"].equals(decided["gate_score"])
    assert not looked["gate_enforced"].any()
    (row,) = rows(on)
    assert (row["batch_groups"], row["groups_cut"]) == (3 - len(flagged), len(flagged))
    arms = ["--threshold", threshold, "--audit", 0, "--arms", "off,on", "--seeds", "7", "--resume"]
    assert train(tmp_path, *one, *arms).count("all 1 iterations are done") == 2


def test_arms_that_begin_after_an_interruption_have_the_settings_of_the_first(
    ungated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named in a file only; with a gate that was found, and a later one that would be found now."""
    (tmp_path / "runs" / "early").mkdir(parents=True)
    save(make_gate(horizon=7, step=2), tmp_path / "runs" / "early" / "gate.json")
    (tmp_path / "arms.toml").write_text('arms = ["off", "on"]\nseeds = [3]\nlearning-rate = 0.002\neval-every = 0\n')
    monkeypatch.chdir(tmp_path)
    trained = session.train

    def dies_in_the_second(plan: session.Plan, run: Path, screen: Any) -> None:
        if run.name == "on-3":
            raise KeyboardInterrupt
        trained(plan, run, screen)

    monkeypatch.setattr(session, "train", dies_in_the_second)
    options = ["--from", ungated, "--groups", 3, "--iterations", 1, "--engine", "transformers", "--dtype", "fp32"]
    died = CliRunner().invoke(sr.app, ["train", "AB", *map(str, options), "--config", "arms.toml"])
    assert died.exit_code == 130
    monkeypatch.setattr(session, "train", trained)
    (tmp_path / "runs" / "late").mkdir()
    save(make_gate(horizon=7, step=3), tmp_path / "runs" / "late" / "gate.json")

    with pytest.raises(InputError, match=r"^--learning-rate 0\.5: the run has 0\.002; a resumed run keeps"):
        train("AB", "--resume", "--learning-rate", 0.5)
    with pytest.raises(InputError, match="AB/off-3: holds a run already"):
        train("AB", *options, "--config", "arms.toml")
    train("AB", "--resume", "--iterations", 1)
    off, on = (read_run(tmp_path / "AB" / arm).configuration for arm in ("off-3", "on-3"))
    own = ("arm", "gate_mode", "seed")
    assert {k: v for k, v in off.items() if k not in own} == {k: v for k, v in on.items() if k not in own}
    assert (off["arm"], on["arm"], on["learning_rate"]) == ("off", "on", 0.002)
    assert rows(tmp_path / "AB" / "on-3")[0]["gate_step"] == 2


def test_when_every_group_is_cut_nothing_is_learned_and_the_run_goes_on(tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, *tiny.options, "--threshold", 1, "--at-step", 1, "--audit", 0)
    for row in rows(run):
        assert (row["groups_cut"], row["batch_groups"], row["updated"]) == (3, 0, False)
        assert (row["loss"], row["gradient_norm"], row["success"], row["zero_advantage_share"]) == (None,) * 4
        assert row["tokens_skipped_gate"] > 0
    assert not (run / "adapters").exists()


def test_when_every_group_is_zero_variance_nothing_is_learned_and_the_run_goes_on(tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, *tiny.options, "--max-steps", 1, "--log-steps", "groups", "--groups", 1)
    for row in rows(run):
        assert (row["groups_zero_variance"], row["zero_advantage_share"], row["updated"]) == (1, 1.0, False)
    assert scan(run, "steps").collect().is_empty()
    assert trajectories(run).height == 6


def test_prompts_that_taught_nothing_do_not_come_back_in_the_place_of_others(tiny: Tiny, tmp_path: Path) -> None:
    """One step a trajectory: nobody wins, so every group asks for another in its place."""
    options = [*tiny.options, "--max-steps", 1, "--groups", 3, "--refill", 4, "--iterations", 3]
    train(tmp_path / "run", *options, "--skip-prompts", "--exploration", 0.1)
    first, *later = (row for row in rows(tmp_path / "run") if row["groups"])
    assert (first["groups_refilled"], first["prompts_skipped"]) == (4, 0)
    assert later
    assert sum(row["groups_refilled"] for row in later) < 4 * len(later)


def test_without_a_gate_a_run_calibrates_itself_or_says_why_not(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = train("run", *tiny.options, "--threshold", "auto", "--warmup-iterations", 1)
    assert "gate: none yet; calibrated on the first 1 iterations" in printed
    assert "no gate: too few groups" in printed
    assert [row["gate_mode"] for row in rows(tmp_path / "run")] == ["warmup", "off"]


# A frozen run


def test_a_run_learns_from_a_frozen_one_gated_or_not(
    ungated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_engine(*_: object, **__: object) -> Engine:
        raise AssertionError("nothing is to be rolled out")

    monkeypatch.setattr(session, "open_engine", no_engine)
    options = ["--from", ungated, "--groups", 3, "--iterations", 2, "--eval-every", 0, "--learning-rate", 1e-3]
    options += ["--engine", "transformers", "--dtype", "fp32"]
    gate = ["--threshold", 1, "--at-step", 2, "--audit", 0]
    train(tmp_path, *options, *gate, "--arms", "off,on", "--seeds", "3")
    off, on = rows(tmp_path / "off-3"), rows(tmp_path / "on-3")

    assert [row["groups"] for row in off] == [row["groups"] for row in on] == [3, 3]
    assert sum(row["groups_cut"] for row in on) > 0
    assert all(row["groups_cut"] == 0 for row in off)
    ids = [scan(tmp_path / arm, "groups").collect()["group_id"].to_list() for arm in ("off-3", "on-3")]
    assert ids[0] == ids[1]
    assert read_run(tmp_path / "on-3").configuration["horizon"] == 7
    assert scan(tmp_path / "on-3", "steps").collect().is_empty()


@pytest.mark.parametrize("mode", ["on", "shadow"])
def test_a_group_of_a_frozen_run_is_audited_once_however_often_it_is_learned_from(
    ungated: Path, tmp_path: Path, mode: str
) -> None:
    options = ["--from", ungated, "--groups", 3, "--eval-every", 0, "--engine", "transformers", "--dtype", "fp32"]
    held = scan(ungated, "groups").collect().height
    train(tmp_path / "run", *options, "--iterations", held, "--threshold", 1, "--at-step", 1, "--gate-mode", mode)
    iterations = rows(tmp_path / "run")

    assert sum(row["groups"] for row in iterations) == 3 * held
    last = iterations[-1]
    assert 0 < last["audit_flagged"] <= held
    assert last["audit_runs"] == last["audit_flagged"]
    assert last["audit_flagged"] == iterations[(held - 1) // 3]["audit_flagged"]
    assert sum(row["groups_audited"] for row in iterations) == (last["audit_runs"] if mode == "on" else 0)


def test_what_a_frozen_run_was_rolled_out_with_cannot_be_said_otherwise(ungated: Path, tmp_path: Path) -> None:
    frozen = ["--from", ungated, "--engine", "transformers"]
    with pytest.raises(InputError, match=rf"^--temperature 0\.5: {ungated} was rolled out with 0\.9; drop it$"):
        train(tmp_path / "run", *frozen, "--temperature", 0.5)
    (tmp_path / "other.toml").write_text("max-steps = 9\n")
    with pytest.raises(InputError, match=rf"^--max-steps 9: {ungated} was rolled out with 7; drop it$"):
        train(tmp_path / "run", *frozen, "--config", tmp_path / "other.toml")
    same = {"from_run": str(ungated), "temperature": 0.9, "engine": "transformers"}
    assert session.plan(None, same, print).settings.temperature == 0.9


def test_games_of_a_frozen_run_are_not_judged_on(ungated: Path, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is learned from too"):
        train(tmp_path / "run", "--from", ungated, "--engine", "transformers", "--eval-on", tiny.games)


# Faults


class Broken(Faulty):
    """The real engine, which fails on the requests of games whose id begins so."""

    def __init__(self, engine: Engine, begins: str) -> None:
        super().__init__(engine)
        self._begins = begins

    async def generate(self, request: Request) -> Completion:
        if request.trajectory.startswith(self._begins):
            raise EngineFault("out of memory")
        return await super().generate(request)

    def close(self) -> None:
        self._engine.close()


@pytest.fixture
def games(tiny: Tiny) -> list[Game]:
    return find_games("train", tiny.games)


def break_engine(monkeypatch: pytest.MonkeyPatch, begins: str) -> None:
    monkeypatch.setattr(session, "open_engine", lambda *a, **k: Broken(open_engine(*a, **k), begins))


def test_a_group_that_fails_is_recorded_and_the_others_are_learned_from(
    tiny: Tiny, games: list[Game], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_engine(monkeypatch, games[0].id)
    run = tmp_path / "run"
    train(run, *tiny.options, "--iterations", 1, "--groups", 2)

    (row,) = rows(run)
    assert (row["groups"], row["groups_failed"], row["batch_groups"]) == (1, 1, 1)
    errors = scan(run, "errors").collect()
    assert set(errors["group_id"]) == {f"{games[0].id}#0"}
    assert scan(run, "groups").collect()["group_id"].to_list() == [f"{games[1].id}#0"]


def test_when_every_group_fails_the_run_stops_and_goes_on_once_it_can(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    break_engine(monkeypatch, "")
    with pytest.raises(SelectiveRolloutError, match=r"every group of iteration 1 failed \(out of memory\)"):
        train(run, *tiny.options, "--iterations", 1)
    monkeypatch.setattr(session, "open_engine", open_engine)
    train(run, "--resume")
    assert rows(run)[0]["groups"] == 3


def test_a_policy_that_says_nothing_is_learned_from_without_a_number_going_astray(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some replies are only a stop token, some are empty; the others are the model's own."""

    class Silent(Broken):
        async def generate(self, request: Request) -> Completion:
            whole = await Faulty.generate(self, request)
            stops = [i for i, token in enumerate(whole.token_ids) if token in request.stop]
            if request.trajectory.endswith("/0") or not stops:
                return Completion((), (), "stop")
            if request.trajectory.endswith("/1"):
                return Completion(whole.token_ids[stops[0] :], whole.logprobs[stops[0] :], "stop")
            return whole

    monkeypatch.setattr(session, "open_engine", lambda *a, **k: Silent(open_engine(*a, **k), "none"))
    run = tmp_path / "run"
    train(run, *tiny.options)
    assert not [v for row in rows(run) for v in row.values() if isinstance(v, float) and not math.isfinite(v)]
    silent = trajectories(run).filter(pl.col("trajectory") == 0)
    assert silent["logprobs"].list.len().sum() == 0
    if (run / "adapters").exists():
        weights = load_file(max((run / "adapters").iterdir()) / "adapter_model.safetensors")
        assert all(bool(weight.isfinite().all()) for weight in weights.values())
