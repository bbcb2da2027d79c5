"""What SQL can ask besides the views: macros in plain DuckDB, so that they also work in a database saved to a file.

Each is held against `calibrate` by a test: the distance at every K, the outcome of a group, the cuts of a gate and
their exact interval.
"""

from dataclasses import dataclass

import duckdb


@dataclass(frozen=True)
class Macro:
    """A macro: how it is called, what it answers, and its SQL with `{key}` for what identifies a group."""

    signature: str
    comment: str
    sql: str
    is_table: bool = True

    @property
    def name(self) -> str:
        """Its bare name."""
        return self.signature.partition("(")[0]

    @property
    def shown(self) -> str:
        """How it stands in a query."""
        return f"FROM {self.signature}" if self.is_table else self.signature


OUTCOME = Macro(
    "outcome(rewards)",
    "what a group's final rewards say: mixed, all_fail, all_succeed or uniform. Rewards that differ by at most 1e-8 "
    "count as equal, or by as much as is said: outcome(rewards, tolerance := 0.1).",
    """
CREATE MACRO outcome(rewards, tolerance := 1e-8) AS CASE
    WHEN list_max(rewards) - list_min(rewards) > tolerance THEN 'mixed'
    WHEN abs(list_avg(rewards)) <= tolerance AND abs(list_avg(rewards)) < abs(list_avg(rewards) - 1) THEN 'all_fail'
    WHEN abs(list_avg(rewards) - 1) <= tolerance AND abs(list_avg(rewards) - 1) < abs(list_avg(rewards))
        THEN 'all_succeed'
    WHEN rewards IS NOT NULL THEN 'uniform'
END
""",
    is_table=False,
)

# The bounds of Clopper and Pearson are where the binomial tails are 2.5 %: found by halving [0, 1] sixty times, as SQL
# has no inverse of the beta distribution. The first element of the list is where the halving starts.
_TAIL = """
CREATE MACRO binomial_tail(x, n, p) AS list_sum(
    [exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * ln(p) + (n - i) * ln(1 - p)) FOR i IN range(x, n + 1)]
)
"""
_HALVING = """
list_reduce(
        [{{'low': 0.0::DOUBLE, 'high': 1.0::DOUBLE}} FOR i IN range(61)],
        lambda bounds, i: CASE
            WHEN {beyond} THEN {{'low': bounds.low, 'high': (bounds.low + bounds.high) / 2}}
            ELSE {{'low': (bounds.low + bounds.high) / 2, 'high': bounds.high}}
        END
    ).low"""

TAIL = Macro(
    "binomial_tail(x, n, p)", "the chance of x or more of n, each with chance p in (0, 1).", _TAIL, is_table=False
)
LOWEST = Macro(
    "lowest_rate(x, n)",
    "the lower bound of the exact (Clopper-Pearson) 95 % interval of the rate x of n.",
    "CREATE MACRO lowest_rate(x, n) AS CASE WHEN x = 0 THEN 0.0 WHEN n > 0 THEN "
    + _HALVING.format(beyond="binomial_tail(x, n, (bounds.low + bounds.high) / 2) > 0.025")
    + " END",
    is_table=False,
)
HIGHEST = Macro(
    "highest_rate(x, n)",
    "its upper bound.",
    "CREATE MACRO highest_rate(x, n) AS CASE WHEN x = n THEN 1.0 WHEN n > 0 THEN "
    + _HALVING.format(beyond="1 - binomial_tail(x + 1, n, (bounds.low + bounds.high) / 2) < 0.025")
    + " END",
    is_table=False,
)

# '$' stands for END, which fills up the prefix of a trajectory that ended before k: no action is written as it. The sum
# of whole numbers is divided once, as calibrate does, so that the two are the same to the last bit. DuckDB before 1.3,
# which can open a saved database, counted bytes instead of characters: better no answer there than a wrong one.
PREFIX_DISTANCE = Macro(
    "prefix_distance(k)",
    "the mean prefix edit distance of every group at step k, END padded.",
    """
CREATE MACRO prefix_distance(k) AS TABLE
SELECT {key},
    CASE WHEN levenshtein('\u4e00', '\u4e01') <> 1 THEN error('prefix_distance needs DuckDB 1.3 or newer')
    ELSE sum(levenshtein(
        rpad(left(a.action_symbols, k::INTEGER), k::INTEGER, '$'),
        rpad(left(b.action_symbols, k::INTEGER), k::INTEGER, '$')
    ))::DOUBLE / (k * count(*)) END AS prefix_distance
FROM trajectories a JOIN trajectories b USING ({key})
WHERE a.trajectory < b.trajectory AND k >= 1
GROUP BY {key}
""",
)

PRECISION = Macro(
    "precision_at(k, threshold)",
    "one row: what a gate on the prefix distance would have done. Of the groups that no gate cut, flagged are those "
    "under the threshold, cut those of them in which a trajectory is longer than k; precision is the share of "
    "zero-variance groups among the cut, with its exact 95 % interval, each group counted as one draw.",
    """
CREATE MACRO precision_at(k, threshold) AS TABLE
WITH judged AS (
    SELECT {key},
        prefix_distance < threshold AS flagged,
        outcome(rewards) <> 'mixed' AS zero_variance,
        longest > k AS eligible
    FROM prefix_distance(k)
    JOIN groups USING ({key})
    JOIN (SELECT {key}, max(length) AS longest FROM trajectories GROUP BY {key}) USING ({key})
    WHERE gate_enforced IS NOT TRUE
), counted AS (
    SELECT {run}
        count(*) AS groups,
        count(*) FILTER (flagged) AS flagged,
        count(*) FILTER (flagged AND eligible) AS cut,
        count(*) FILTER (flagged AND eligible AND zero_variance) AS true_positives,
        count(*) FILTER (flagged AND eligible AND NOT zero_variance) AS false_positives,
        count(*) FILTER (eligible AND zero_variance) AS zero_variance
    FROM judged {by_run}
)
SELECT {run} groups, flagged, cut, true_positives, false_positives,
    true_positives / nullif(cut, 0) AS precision,
    lowest_rate(true_positives, cut) AS lowest,
    highest_rate(true_positives, cut) AS highest,
    true_positives / nullif(zero_variance, 0) AS recall
FROM counted
""",
)

MACROS = (PREFIX_DISTANCE, OUTCOME, PRECISION, LOWEST, HIGHEST, TAIL)
_IN_ORDER = (OUTCOME, TAIL, LOWEST, HIGHEST, PREFIX_DISTANCE, PRECISION)  # each after those that it calls


def create_macros(connection: duckdb.DuckDBPyConnection, *, several_runs: bool) -> None:
    """Create the macros over the views or tables `groups` and `trajectories` of the connection."""
    key, run, by_run = ("run, group_id", "run,", "GROUP BY run") if several_runs else ("group_id", "", "")
    for macro in _IN_ORDER:
        kind = "MACRO TABLE" if macro.is_table else "MACRO"
        sql = macro.sql.format(key=key, run=run, by_run=by_run) if macro.is_table else macro.sql
        connection.execute(sql)
        connection.execute(f"COMMENT ON {kind} {macro.name} IS {quoted(macro.comment)}")


def quoted(text: str) -> str:
    """The text as a string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
