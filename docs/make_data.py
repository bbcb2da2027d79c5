"""Writes docs/data.md from the schema: `python docs/make_data.py`. A test fails when the file is stale."""

from pathlib import Path

import pyarrow as pa

from calibrate.curve_table import CURVES, POINTS
from calibrate.signals import SIGNALS
from collect.schema import ERRORS, GROUPS, SCHEMA_VERSION, STEPS, TRAINING_TABLES, TRAJECTORIES, Column, Table

DATA = Path(__file__).with_name("data.md")
DOCUMENTED = (GROUPS, TRAJECTORIES, STEPS, ERRORS, SIGNALS, CURVES, POINTS, *TRAINING_TABLES)

_INTRODUCTION = f"""\
# The files of a run

<!-- Written by docs/make_data.py from the schema. Do not edit. -->

A run is one folder. Anything that reads JSON and Parquet reads it; this page describes schema version {SCHEMA_VERSION}.

| file | what it holds |
| --- | --- |
| `run.json` | `configuration`, which identifies the run; `facts` of how it was made; `command`, `created`, version |
| `groups/part-*.parquet` | one row a group |
| `trajectories/part-*.parquet` | one row a trajectory |
| `steps/part-*.parquet` | one row a step |
| `errors/part-*.parquet` | one row a failed attempt at a group |
| `signals.parquet`, `calibration/*.parquet`, `gate.json` | written by `sr calibrate` |
| `iterations.parquet`, `evaluations.parquet` | written by `sr train`: one row an iteration, an evaluation |
| `adapters/`, `checkpoint/` | written by `sr train`: LoRA adapters, and what `--resume` goes on from |

## What to rely on

- A group is written whole or not at all, whatever kills the writer. The part in `groups/` is written last and is the
  commit: a part of `trajectories/` or `steps/` counts only if `groups/` has one of the same name. `sr query` and
  `collect.store.scan` see to that. Plain readers should join with `groups` while a run is being written, or after one
  was killed; the next start with the same folder deletes what was not committed.
- Rows are found by their key, never by position. Steps are counted from 1, trajectories of a group from 0.
- Seconds are wall-clock seconds, times are UTC. Log-probabilities are natural logarithms under the distribution that
  was really sampled from, temperature and top-p applied.
- Text is UTF-8. What UTF-8 cannot hold (lone surrogates in a model's reply) is written as U+FFFD; `token_ids` say
  exactly what was sampled.
- A later version may add columns. It reads the runs of earlier ones, with null in the columns that they lack.

A column is never null unless it says when.
"""

_SQL = """\
## SQL

`sr query RUN "SELECT …"` answers in DuckDB's SQL, over the views `groups`, `trajectories`, `steps`, `errors`, once
`sr calibrate` has run `signals`, and of a training run `iterations` and `evaluations`. `latest` stands for the newest
run in `runs/`. With `--also RUN` several runs are asked at once and every view has a first column `run`. Nothing that
the SQL says can change a run or touch another file. A table shows at most 200 rows; `--csv`, `--json` and `--parquet
FILE` give all (`--parquet -` to standard output). Of several columns with one name, JSON and Parquet call the second
`name_1`.

`sr query RUN` alone opens DuckDB's own shell on the views, where the program `duckdb` is installed (`pip install
duckdb-cli`) and the output is a terminal; else it lists the views, their columns and the macros. `sr query RUN --save
FILE.duckdb` copies all rows into a database that any DuckDB (1.3 or newer, for the macros) opens: it holds tables, not
references, so it goes on working wherever it is moved and whatever becomes of the run.

[queries.md](queries.md) asks twelve useful questions. Some more:

How do groups end, by task type?

```sql
SELECT task_type,
       count(*) AS groups,
       count(*) FILTER (list_max(rewards) = 0) AS all_fail,
       count(*) FILTER (list_min(rewards) = 1) AS all_succeed
FROM groups GROUP BY task_type ORDER BY task_type
```

Which commands did the game refuse most often?

```sql
SELECT action, count(*) AS times
FROM steps WHERE match = 'none' GROUP BY action ORDER BY times DESC, action LIMIT 10
```

`prefix_distance(k)` is the mean prefix edit distance of every group at step k. It is plain SQL: `action_symbols` holds
one character for each action, so that DuckDB's own `levenshtein` is the edit distance of two action sequences. It
equals `prefix_edit_distance_mean` in `signals` to the last bit. Is it lower in groups that teach nothing?

```sql
SELECT outcome(rewards) <> 'mixed' AS zero_variance, count(*) AS n, avg(prefix_distance) AS mean_distance
FROM prefix_distance(5) JOIN groups USING (group_id) GROUP BY ALL ORDER BY ALL
```

## Python

```python
import polars as pl

steps = pl.scan_parquet("RUN/steps/*.parquet")
groups = pl.scan_parquet("RUN/groups/*.parquet")
mean_reply = (
    steps.join(groups.select("group_id", "task_type"), on="group_id")
    .group_by("task_type")
    .agg(pl.col("reply_tokens").mean())
    .collect()
)
```

```python
import duckdb

trajectories, groups = "'RUN/trajectories/*.parquet'", "'RUN/groups/*.parquet'"
longest = duckdb.sql(f"SELECT max(length) FROM {trajectories} SEMI JOIN {groups} USING (group_id)").fetchall()
```

```python
from pathlib import Path

from collect.store import scan

won = scan(Path("RUN"), "trajectories").select("group_id", "won").collect()
```
"""


def page() -> str:
    """The whole of docs/data.md."""
    return "\n".join([_INTRODUCTION, *map(_section, DOCUMENTED), _SQL])


def _section(table: Table) -> str:
    key = ", ".join(f"`{name}`" for name in table.key)
    return "\n".join(
        [
            f"## {table.name}",
            "",
            f"{table.comment} Key: {key}.",
            "",
            "| column | type | what it holds |",
            "| --- | --- | --- |",
            *map(_row, table.columns),
            "",
        ]
    )


def _row(column: Column) -> str:
    comment = column.comment.replace("|", "\\|")
    return f"| `{column.name}` | {_type(column.type)} | {comment} |"


def _type(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return f"{kind.value_type}, dictionary"
    if pa.types.is_list(kind):
        return f"list of {kind.value_type}"
    return str(kind)


if __name__ == "__main__":
    DATA.write_text(page(), encoding="utf-8")
