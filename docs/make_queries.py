"""Writes docs/queries.md: `python docs/make_queries.py` asks a small synthetic run each question and shows the answer.

A test fails when the page is stale, so its answers are real. The run is made by tests/synthetic.py.
"""

import random
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from synthetic import COMMANDS, make_group

from calibrate.edit_distance import prefix_edit_distance_at
from calibrate.rollouts import read_rollouts, write_signals
from collect.store import open_run
from collect.trajectory import Decision
from reports.sql import open_runs

PAGE = Path(__file__).with_name("queries.md")
_STEP, _THRESHOLD = 4, 0.45


@dataclass(frozen=True)
class Question:
    """A question, what to know of its answer, and its SQL."""

    title: str
    remark: str
    sql: str


QUESTIONS = (
    Question(
        "How do groups end, by task type?",
        "`outcome` is a macro: what a group's rewards say. With the zero-variance share and its exact 95 % interval, "
        "each group counted as one draw.",
        """\
SELECT task_type,
       count(*) AS n,
       count(*) FILTER (outcome(rewards) = 'all_fail') AS all_fail,
       count(*) FILTER (outcome(rewards) = 'mixed') AS mixed,
       count(*) FILTER (outcome(rewards) = 'all_succeed') AS all_succeed,
       round(1 - mixed / n, 3) AS zero_variance,
       round(lowest_rate(n - mixed, n), 3) AS lowest,
       round(highest_rate(n - mixed, n), 3) AS highest
FROM groups GROUP BY task_type ORDER BY task_type""",
    ),
    Question(
        "Do groups that teach nothing look alike, and from which step on?",
        "`prefix_distance(k)` takes its step from a column too.",
        """\
SELECT k,
       round(avg(prefix_distance) FILTER (outcome(rewards) = 'mixed'), 3) AS mixed,
       round(avg(prefix_distance) FILTER (outcome(rewards) <> 'mixed'), 3) AS zero_variance
FROM range(1, 8) steps(k), prefix_distance(k) JOIN groups USING (group_id)
GROUP BY k ORDER BY k""",
    ),
    Question(
        "What would a gate have cut at each step and threshold?",
        "`precision_at` counts what a live gate could have cut: groups under the threshold in which some trajectory is "
        "longer than k. The interval is exact, with each group counted as one draw; `sr calibrate` counts by task.",
        """\
SELECT k, threshold, cut, true_positives, false_positives,
       round(precision, 3) AS precision, round(lowest, 3) AS lowest, round(highest, 3) AS highest,
       round(recall, 3) AS recall
FROM (VALUES (2), (4), (6)) steps(k), (VALUES (0.3), (0.45), (0.6)) thresholds(threshold),
     precision_at(k, threshold)
ORDER BY k, threshold""",
    ),
    Question(
        "How many tokens would such a gate have saved?",
        "Of the tokens sampled in all, those sampled after step 4 in groups under 0.45.",
        """\
WITH spent AS (
    SELECT group_id, sum(reply_tokens) AS tokens, sum(reply_tokens) FILTER (step > 4) AS after
    FROM steps GROUP BY group_id
)
SELECT sum(tokens) AS tokens,
       sum(after) FILTER (prefix_distance < 0.45) AS saved,
       round(saved / sum(tokens), 3) AS share
FROM spent JOIN prefix_distance(4) USING (group_id)""",
    ),
    Question(
        "How did the gate that ran decide, and was it right?",
        "A decision is recorded when it is made. Here the gate was in shadow: it flagged and did not cut, so each "
        "flag can be judged.",
        """\
SELECT gate_flagged, count(*) AS groups, count(*) FILTER (outcome(rewards) <> 'mixed') AS zero_variance,
       round(avg(gate_score), 3) AS mean_score
FROM groups WHERE gate_evaluated GROUP BY gate_flagged ORDER BY gate_flagged""",
    ),
    Question(
        "Which flagged groups were mistakes?",
        "Groups that the gate would have cut although their rewards differ, with the games to look at.",
        """\
SELECT group_id, gate_score, rewards
FROM groups WHERE gate_flagged AND outcome(rewards) = 'mixed' ORDER BY gate_score, group_id LIMIT 5""",
    ),
    Question(
        "At which step do the trajectories of a group first part?",
        "The first step at which two of them do different things.",
        """\
WITH parted AS (
    SELECT group_id, min(step) AS first
    FROM (SELECT group_id, step FROM steps GROUP BY ALL HAVING count(DISTINCT action) > 1)
    GROUP BY group_id
)
SELECT first, count(*) AS groups, count(*) FILTER (outcome(rewards) <> 'mixed') AS zero_variance
FROM groups LEFT JOIN parted USING (group_id) GROUP BY first ORDER BY first NULLS LAST""",
    ),
    Question(
        "Which games are always won or always lost?",
        "A game whose visits all ended alike is a candidate for leaving out before the rollout.",
        """\
SELECT game_id, count(DISTINCT visit) AS visits, count(*) AS trajectories, sum(won::INTEGER) AS won
FROM trajectories JOIN groups USING (group_id)
GROUP BY game_id HAVING visits > 1 AND won IN (0, trajectories) ORDER BY won, game_id LIMIT 6""",
    ),
    Question(
        "Which commands did the game refuse most often?",
        "`match` says how a reply became a command; `none` was sent as it was, and nothing happened.",
        """\
SELECT action, count(*) AS times, count(DISTINCT group_id) AS in_groups
FROM steps WHERE match = 'none' GROUP BY action ORDER BY times DESC, action LIMIT 5""",
    ),
    Question(
        "How often does a trajectory come back to what it had read before?",
        "The share of steps that repeat an observation, in trajectories won and lost.",
        """\
SELECT won, count(*) AS trajectories, round(1 - sum(distinct_observations) / sum(length), 3) AS repeated
FROM (SELECT group_id, trajectory, count(DISTINCT observation) AS distinct_observations FROM steps GROUP BY ALL)
JOIN trajectories USING (group_id, trajectory)
GROUP BY won ORDER BY won""",
    ),
    Question(
        "How long and how sure are replies as an episode goes on?",
        "The mean log-probability is a token's, over all replies given at that step.",
        """\
SELECT step, count(*) AS replies, round(avg(reply_tokens), 2) AS mean_tokens,
       round(sum(reply_logprob) / sum(reply_tokens), 3) AS mean_logprob
FROM steps GROUP BY step ORDER BY step""",
    ),
    Question(
        "Which signal tells zero-variance groups apart best at a step?",
        "The area under the ROC curve by ranks, among groups that could still be cut. Needs `sr calibrate`, which also "
        "gives the intervals.",
        """\
WITH long AS (
    UNPIVOT (
        SELECT outcome <> 'mixed' AS zero_variance, prefix_edit_distance_mean, unique_prefix_ratio, action_entropy,
               1 - repetition AS new_observations
        FROM signals WHERE step = 4 AND eligible
    ) ON COLUMNS(* EXCLUDE zero_variance) INTO NAME signal VALUE score
), ranked AS (
    SELECT *, rank() OVER (PARTITION BY signal ORDER BY score)
        + (count(*) OVER (PARTITION BY signal, score) - 1) / 2 AS place
    FROM long
)
SELECT signal, count(*) AS groups,
       round((sum(place) FILTER (NOT zero_variance) - count(*) FILTER (NOT zero_variance)
           * (count(*) FILTER (NOT zero_variance) + 1) / 2)
           / (count(*) FILTER (zero_variance) * count(*) FILTER (NOT zero_variance)), 3) AS auroc
FROM ranked GROUP BY signal ORDER BY auroc DESC, signal""",
    ),
)

_INTRODUCTION = """\
# Twelve questions to a run

<!-- Written by docs/make_queries.py. Do not edit. -->

Each is asked with `sr query RUN "…"`; the columns are in [data.md](data.md), and `sr query RUN` alone lists them with
the macros. The answers are those of a small synthetic run. With `--also RUN` the same SQL asks several runs: every view
then has a column `run` to group by.
"""


def make_run(folder: Path) -> Path:
    """The run that is asked: 36 groups of 4 on 18 games, some of which repeat themselves; calibrated."""
    rng = random.Random(7)
    with open_run(folder, {}, {}) as run:
        for visit in range(2):
            for number in range(18):
                stuck = number % 3 == 0
                plan = [rng.choice(COMMANDS) for _ in range(8)]
                odd = 0.08 if stuck else 0.6
                chosen = [
                    [rng.choice((*COMMANDS, "dance")) if rng.random() < odd else a for a in plan] for _ in range(4)
                ]
                won = [False] * 4 if stuck and rng.random() < 0.8 else [rng.random() < 0.5 for _ in range(4)]
                actions = [a[: rng.randint(5, 8)] if w else a for a, w in zip(chosen, won, strict=True)]
                score = prefix_edit_distance_at(actions, _STEP)
                decision = Decision(_STEP, score, _THRESHOLD, flagged=score < _THRESHOLD, enforced=False)
                run.add(make_group(rng, 4, 8, number=number, visit=visit, actions=actions, won=won, decision=decision))
    write_signals(folder / "signals.parquet", read_rollouts(folder, 1e-8))
    return folder


def page() -> str:
    """The whole of docs/queries.md."""
    with tempfile.TemporaryDirectory() as parent:
        database = open_runs([make_run(Path(parent, "run"))])
        sections = [
            f"## {number}. {question.title}\n\n{textwrap.fill(question.remark, 120)}\n\n```sql\n{question.sql}\n```\n\n"
            f"```text\n{database.as_table(question.sql, width=240)}\n```\n"
            for number, question in enumerate(QUESTIONS, start=1)
        ]
    return "\n".join([_INTRODUCTION, *sections])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
