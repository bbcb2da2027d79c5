"""docs/queries.md shows what its questions really answer."""

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from user import ROOT

from collect.store import scan
from reports.sql import open_runs

GENERATOR = runpy.run_path(str(ROOT / "docs" / "make_queries.py"))
QUESTIONS = {question.title: question.sql for question in GENERATOR["QUESTIONS"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = GENERATOR["make_run"](tmp_path_factory.mktemp("queries") / "run")
    return made


def answer(run: Path, title: str) -> list[tuple[Any, ...]]:
    return open_runs([run]).run(QUESTIONS[title]).fetchall()


def test_queries_md_is_what_the_questions_answer() -> None:
    written = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
    assert GENERATOR["page"]() == written, "stale: run python docs/make_queries.py"
    assert written.count("\n```sql\n") == written.count("\n```text\n") == len(QUESTIONS) == 12


def test_every_question_has_an_answer(run: Path) -> None:
    assert all(answer(run, title) for title in QUESTIONS)


def test_outcomes_are_those_of_the_rewards(run: Path) -> None:
    kinds = {(0.0,): "all_fail", (1.0,): "all_succeed"}
    counted = Counter[tuple[str, str]]()
    for task_type, rewards in scan(run, "groups").select("task_type", "rewards").collect().rows():
        counted[task_type, kinds.get(tuple(set(rewards)), "mixed")] += 1
    for task_type, n, *found in (row[:5] for row in answer(run, "How do groups end, by task type?")):
        assert found == [counted[task_type, kind] for kind in ("all_fail", "mixed", "all_succeed")]
        assert sum(found) == n


def test_tokens_saved_are_those_sampled_after_the_cut(run: Path) -> None:
    distance = pl.read_parquet(run / "signals.parquet").filter(step=4)
    cut = distance.filter(pl.col("prefix_edit_distance_mean") < 0.45)["group_id"].to_list()
    steps = scan(run, "steps").collect()
    after = steps.filter(pl.col("group_id").is_in(cut), pl.col("step") > 4)["reply_tokens"].sum()
    ((tokens, saved, share),) = answer(run, "How many tokens would such a gate have saved?")
    assert (tokens, saved, share) == (steps["reply_tokens"].sum(), after, round(after / tokens, 3))


def test_the_area_under_the_curve_is_that_of_scikit_learn(run: Path) -> None:
    rows = pl.read_parquet(run / "signals.parquet").filter(pl.col("step") == 4, pl.col("eligible"))
    rows = rows.with_columns(new_observations=1 - pl.col("repetition"))
    mixed = (rows["outcome"].cast(pl.String) == "mixed").to_numpy()
    for signal, groups, area in answer(run, "Which signal tells zero-variance groups apart best at a step?"):
        assert groups == rows.height
        assert area == round(float(roc_auc_score(mixed, rows[signal].to_numpy())), 3)
