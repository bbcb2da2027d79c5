import random
import re
import runpy
from pathlib import Path

import pytest
from synthetic import make_group

from calibrate.rollouts import read_rollouts, write_signals
from collect.schema import TABLES
from collect.store import open_run
from reports.sql import VIEWS, open_runs

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "data.md").read_text(encoding="utf-8")


def examples(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("docs") / "RUN", random.Random(0)
    with open_run(folder, {}, {}) as writer:
        for number in range(8):
            writer.add(make_group(rng, number=number))
    write_signals(folder / "signals.parquet", read_rollouts(folder, 1e-8))
    return folder


def test_data_md_is_what_the_schema_says() -> None:
    written = runpy.run_path(str(DOCS / "make_data.py"))["page"]()
    assert written == PAGE, "stale: run python docs/make_data.py"


def test_every_table_and_column_is_documented_with_a_comment() -> None:
    assert set(TABLES) < set(VIEWS)
    for table in VIEWS:
        section = PAGE.split(f"\n## {table.name}\n")[1].split("\n## ")[0]
        for column in table.columns:
            assert re.search(rf"^\| `{column.name}` \| [^|]+ \| .{{3,}} \|$", section, flags=re.MULTILINE)


@pytest.mark.parametrize("sql", examples("sql"))
def test_every_sql_example_answers(run: Path, sql: str) -> None:
    assert len(open_runs([run]).run(sql).fetchall()) > 0 or "match = 'none'" in sql


@pytest.mark.parametrize("code", examples("python"))
def test_every_python_example_runs(run: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    names: dict[str, object] = {}
    exec(code, names)
    assert names.keys() & {"mean_reply", "longest", "won"}
