"""sr report: what it writes, from what, and what it refuses."""

import random
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from conftest import SHARED
from synthetic import COMMANDS, make_group
from training_runs import write_training
from typer.testing import CliRunner
from user import ROOT

import sr
from calibrate.convention import Convention
from calibrate.fit import apply
from calibrate.outcomes import REWARD_TOLERANCE
from calibrate.rollouts import read_rollouts
from calibrate.rules import Threshold
from collect.errors import InputError
from collect.store import open_run
from reports.report import Written, write_report

DOCUMENTED = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
RESULTS = SHARED / "paper" / "results"
released = pytest.mark.skipif(
    not RESULTS.is_dir(), reason="the paper's tables are not beside this repository (../shared)"
)


def quietly(done: int, total: int, note: str = "") -> None:
    """Show no progress."""


def write_run(folder: Path, groups: int = 40) -> Path:
    """A run in which half of the groups repeat themselves and fail."""
    rng = random.Random(7)
    with open_run(folder, {"model": "tiny", "seed": 1}, {}) as run:
        for number in range(groups):
            if number % 2:
                run.add(make_group(rng, number=number))
            else:
                run.add(make_group(rng, number=number, actions=[[COMMANDS[number % 3]] * 6] * 4, won=[False] * 4))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def written(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_report([run], tmp_path_factory.mktemp("report") / "out", quietly)


def csv(written: Written, name: str) -> pl.DataFrame:
    return pl.read_csv(written.page.parent / "tables" / f"{name}.csv")


def test_every_figure_is_there_as_svg_and_pdf_and_every_table_as_csv(written: Written) -> None:
    out = written.page.parent
    names = {path.stem for path in (out / "figures").glob("*.svg")}
    assert all(f"`{name}`" in DOCUMENTED for name in names)
    assert names == {path.stem for path in (out / "figures").glob("*.pdf")}
    assert names >= {
        "composition",
        "signal_by_outcome",
        "roc",
        "precision_recall",
        "auroc_map",
        "trade_off",
        "policies",
    }
    assert len(names) == written.figures
    assert len(list((out / "tables").glob("*.csv"))) == written.tables
    for path in (out / "figures").iterdir():
        if path.suffix == ".svg":
            title = "".join(ElementTree.parse(path).getroot().itertext())
            assert "n = " in title, path.name
        else:
            assert path.read_bytes().startswith(b"%PDF-")


def test_the_numbers_are_those_of_calibrate(run: Path, written: Written) -> None:
    sample = read_rollouts(run, REWARD_TOLERANCE)
    everyone = csv(written, "composition").row(0, named=True)
    assert (everyone["groups"], everyone["all_fail"]) == (40, int((sample.outcomes == "all_fail").sum()))
    assert everyone["zero_variance"] == pytest.approx(sample.zero_variance.mean())
    step = int(re.findall(r"at K = (\d+)", written.page.read_text())[0])
    sweep = csv(written, "threshold_sweep")
    for row in sweep.iter_rows(named=True):
        rule = Threshold(signal="prefix_edit_distance_mean", step=step, threshold=row["threshold"])
        counts = apply(sample, rule, Convention(row["convention"]))
        assert (row["taken"], row["true_positives"]) == (counts.taken, counts.true_positives)
        assert row["saving"] == pytest.approx(counts.saving.value)
    assert set(sweep["convention"]) == {"eligible", "paper"}


def test_the_trade_off_has_the_oracle_and_random_cuts_and_a_front_that_nothing_beats(written: Written) -> None:
    rows = csv(written, "trade_off")
    (oracle,) = rows.filter(pl.col("policy") == "oracle").iter_rows(named=True)
    (by_chance,) = rows.filter(pl.col("policy") == "random").iter_rows(named=True)
    assert oracle["precision"] == 1
    assert oracle["false_positives"] == 0
    assert by_chance["precision"] == pytest.approx(by_chance["true_positives"] / by_chance["taken"])
    thresholds = rows.filter(pl.col("policy") == "threshold")
    for point in thresholds.filter("on_front").iter_rows(named=True):
        better = (pl.col("precision") >= point["precision"]) & (pl.col("saving") > point["saving"])
        assert thresholds.filter(better).is_empty()


def test_the_page_asks_nothing_of_any_network(written: Written) -> None:
    page = written.page.read_text()
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?\s*(?:https?:)?//""", page)
    assert not re.search(r"@import|url\(\s*[\"']?(?!#)(?!data:)", page)
    links = set(re.findall(r'href="([^"#]+)"', page)) - {"data:,"}
    assert links
    assert all((written.page.parent / link).is_file() for link in links)
    assert "default-src 'none'" in page


def test_the_command_writes_the_same_page_and_files_again(run: Path, written: Written, tmp_path: Path) -> None:
    done = CliRunner().invoke(sr.app, ["report", str(run), "--out", str(tmp_path / "again"), "--quiet"])
    assert done.exit_code == 0, done.output
    assert re.search(r"report\.html: \d+\.\d MB, 13 figures, 9 tables\ngroup browser: 40 of 40 groups", done.stdout)
    again = tmp_path / "again" / "report.html"
    assert again.read_bytes() == written.page.read_bytes()
    for folder in ("figures/*.svg", "tables/*.csv"):
        for path in again.parent.glob(folder):
            other = written.page.parent / path.relative_to(again.parent)
            assert path.read_bytes() == other.read_bytes(), path.name


@released
def test_the_released_signals_give_the_published_table(tmp_path: Path) -> None:
    done = write_report([RESULTS / "group_signals_K10_K20.csv"], tmp_path / "out", quietly)
    sweep = csv(done, "threshold_sweep")
    under = {}
    for convention in ("eligible", "paper"):
        rows = sweep.filter((pl.col("convention") == convention) & (pl.col("threshold") < 0.12)).sort("threshold")
        under[convention] = rows.row(-1, named=True)
    assert [under["paper"][name] for name in ("taken", "true_positives", "false_positives")] == [21, 17, 4]
    assert [under["eligible"][name] for name in ("taken", "true_positives", "false_positives")] == [17, 13, 4]
    assert done.groups == 0


@released
def test_the_released_iterations_give_the_published_savings(tmp_path: Path) -> None:
    tables = sorted(RESULTS.glob("per_iteration_*_seeds7_42.csv"))
    done = write_report(tables, tmp_path / "out", quietly)
    paired = {(r["measure"], r["seed"]): r["value"] for r in csv(done, "paired_differences").iter_rows(named=True)}
    assert round(100 * paired["wall-clock saved", "seed 7"], 2) == 10.65
    assert round(100 * paired["wall-clock saved", "seed 42"], 2) == 14.16
    assert round(paired["gradient norm, ratio of means", "seed 7"], 2) == 1.23
    assert round(paired["gradient norm, ratio of means", "seed 42"], 2) == 1.20
    cut = {r["seed"]: r["cut"] for r in csv(done, "arms").iter_rows(named=True) if r["arm"] == "gated"}
    assert cut == {7: 94, 42: 124}
    page = done.page.read_text()
    for shown in ("10.65 %", "14.16 %", ">94<", ">124<", "1.23", "1.20"):
        assert shown in page


def test_a_folder_of_matched_arms_is_reported_in_pairs(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_training(tmp_path / "arms" / f"off-{seed}", "off", seed, [{}] * 8, groups=3)
        audited = {"groups_cut": 1, "seconds": 7.5, "audit_runs": 4, "audit_zero_variance": 3, "gate_precision": 0.75}
        rows = [audited | {"gate_precision_low": 0.2, "gate_precision_high": 0.99}] * 8
        write_training(tmp_path / "arms" / f"on-{seed}", "on", seed, rows, groups=3)
    done = write_report([tmp_path / "arms"], tmp_path / "out", quietly)
    paired = csv(done, "paired_differences")
    saved = paired.filter(pl.col("measure") == "wall-clock saved")
    assert saved["seed"].to_list() == ["seed 1", "seed 2", "all seeds"]
    assert saved["value"].to_list() == pytest.approx([0.25] * 3)
    arms = csv(done, "arms")
    assert arms["cut"].to_list() == [0, 0, 8, 8]
    assert arms["gate_precision"].to_list() == [None, None, 0.75, 0.75]
    names = {path.stem for path in (done.page.parent / "figures").glob("*.svg")}
    assert names >= {
        "paired_differences",
        "held_out_success",
        "wall_clock",
        "tokens",
        "cuts",
        "live_precision",
        "phases",
    }
    assert all(f"`{name}`" in DOCUMENTED for name in names)
    assert (done.groups_shown, done.groups) == (12, 12)


@pytest.mark.parametrize("won", [[True, True], [True, False]], ids=["all of zero variance and over", "all informative"])
def test_a_run_in_which_nothing_can_be_told_apart_is_reported_all_the_same(tmp_path: Path, won: list[bool]) -> None:
    rng = random.Random(1)
    with open_run(tmp_path / "run", {"model": "tiny"}, {}) as run:
        for number in range(12):
            actions = [[COMMANDS[0]], [COMMANDS[1]]] if won[1] else None
            run.add(make_group(rng, 2, 4, number=number, actions=actions, won=won))
    done = write_report([tmp_path / "run"], tmp_path / "out", quietly)
    names = {path.stem for path in (done.page.parent / "figures").glob("*.svg")}
    assert {"composition", "signal_by_outcome"} <= names
    assert "roc" not in names
    assert done.groups_shown == 12


@pytest.mark.parametrize(
    ("given", "out", "told"),
    [
        ("none", "out", "none: no such file"),
        ("folder", "out", "folder: not a run"),
        ("notes.txt", "out", "notes.txt: the column group_id"),
        ("run", "notes.txt", "is a file; give a folder for the report"),
        ("run", "run", "is a run; give a folder of its own for the report"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path: Path, given: str, out: str, told: str) -> None:
    write_run(tmp_path / "run", 4)
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("a,b\n1,2\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=re.escape(told)) as refused:
        write_report([tmp_path / given], tmp_path / out, quietly)
    assert "\n" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_without_what_draws_the_answer_is_the_install_command(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InputError, match=re.escape('run: pip install "selective-rollout[report]"')):
        write_report([run], tmp_path / "out", quietly)
    assert not (tmp_path / "out").exists()


def test_several_runs_keep_their_figures_apart(tmp_path: Path) -> None:
    small = [write_run(tmp_path / name, 6) for name in ("run two", "run-two")]
    done = write_report(small, tmp_path / "out", quietly)
    names = {path.name for path in (done.page.parent / "figures").glob("*roc.svg")}
    assert names == {"run-two-roc.svg", "run-two-2-roc.svg"}
    ids = re.findall(r'\bid="([^"]+)"', done.page.read_text())
    assert len(ids) == len(set(ids))
