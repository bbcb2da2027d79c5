"""How well every signal ranks groups at every step, as the tables of calibration/."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calibrate.convention import Convention
from calibrate.curves import Areas, Correlation, areas, rank_correlation
from calibrate.fit import ladder
from calibrate.intervals import UNKNOWN
from calibrate.sample import Bools, Sample
from calibrate.signals import BY_NAME
from collect.errors import InputError
from collect.files import replacing
from collect.progress import Update
from collect.schema import LABEL, Column, Table

ALL = "all"  # stands for every task type
_POINTS_A_CURVE = 200

_REAL = pa.float64()

CURVES = Table(
    "curves",
    "One row a signal, step and task type: how well the signal tells zero-variance groups from informative ones, among "
    "the groups that count. Written by `sr calibrate` into calibration/curves.parquet.",
    ("signal", "step", "task_type"),
    (
        Column("signal", LABEL, "the signal"),
        Column("step", pa.int32(), "K"),
        Column("task_type", LABEL, "a task type, or `all`; a task type of that very name is `all (task type)`"),
        Column("groups", pa.int32(), "groups that count"),
        Column("zero_variance", pa.int32(), "zero-variance ones among them"),
        Column(
            "auroc",
            _REAL,
            "P(an informative group lies further from the end that speaks for zero variance than a zero-variance one), "
            "ties counting half; null where a class is absent",
            True,
        ),
        Column(
            "auroc_low", _REAL, "lower bound of its 95 % interval, by task; null where the groups cannot give it", True
        ),
        Column("auroc_high", _REAL, "upper bound", True),
        Column("average_precision", _REAL, "of finding zero-variance groups; null where a class is absent", True),
        Column("average_precision_low", _REAL, "lower bound of its 95 % interval, by task", True),
        Column("average_precision_high", _REAL, "upper bound", True),
        Column(
            "rho", _REAL, "Spearman's correlation of signal and reward variance; null where one does not vary", True
        ),
        Column("p_value", _REAL, "of rho, with the groups taken as independent", True),
    ),
)

POINTS = Table(
    "points",
    "One row a signal, step, task type and threshold: the ROC and precision-recall curves, over the groups that count. "
    f"At most {_POINTS_A_CURVE} points a curve. Written by `sr calibrate` into calibration/points.parquet.",
    ("signal", "step", "task_type", "threshold"),
    (
        Column("signal", LABEL, "the signal"),
        Column("step", pa.int32(), "K"),
        Column("task_type", LABEL, "as in curves"),
        Column("threshold", _REAL, "a group is taken under it (over it, where high values speak for zero variance)"),
        Column("taken", pa.int32(), "groups taken"),
        Column("true_positives", pa.int32(), "zero-variance ones among them"),
        Column("precision", _REAL, "true_positives / taken"),
        Column("recall", _REAL, "share of the zero-variance groups that are taken; null where there is none", True),
        Column("false_positive_rate", _REAL, "share of the informative groups that are taken; null where none", True),
        Column(
            "net_saving",
            _REAL,
            "fall in the cost per informative group; minus infinity where none is left, NaN where there is none",
        ),
    ),
)


@dataclass(frozen=True)
class Cell:
    """One signal at one step, on the groups of one task type, or of all; None where it cannot be known."""

    signal: str
    step: int
    task_type: str
    groups: int
    zero_variance: int
    areas: Areas | None
    correlation: Correlation | None


def cells(sample: Sample, convention: Convention, columns: Sequence[int], progress: Update | None = None) -> list[Cell]:
    """Every signal at the steps of `columns`, on all groups and on each task type. A step without an eligible group
    has empty cells.
    """
    found: list[Cell] = []
    for done, column in enumerate(columns):
        if progress is not None:
            progress(done, len(columns))
        for task_type, rows in _parts(sample):
            counted = sample.counted(column, convention) & rows & (sample.eligible[:, column] & rows).any()
            found += _cells(sample, column, task_type, counted)
    return found


def write_curves(folder: Path, sample: Sample, convention: Convention, found: Sequence[Cell]) -> None:
    """Write `found` as `CURVES` and the curves themselves as `POINTS` into a folder, which is made if need be.

    Raises:
        InputError: the folder cannot be written to.
    """
    try:
        folder.mkdir(exist_ok=True)
        rows = [_curve_row(cell) for cell in found]
        _write(folder / f"{CURVES.name}.parquet", pa.Table.from_pylist(rows, CURVES.arrow))
        parts = dict(_parts(sample))
        points = [_points(sample, convention, cell, parts[cell.task_type]) for cell in found]
        _write(folder / f"{POINTS.name}.parquet", pa.concat_tables([POINTS.arrow.empty_table(), *points]))
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); make the folder writable") from error


def _parts(sample: Sample) -> Iterator[tuple[str, Bools]]:
    """All groups, and those of each task type, with the name that the tables give them."""
    yield ALL, np.ones(sample.size, np.bool_)
    if sample.task_types is not None:
        for task_type in sample.task_types.unique().sort():
            # A log may name a task type as it likes, and each row of a table must be told from the others.
            yield f"{ALL} (task type)" if task_type == ALL else task_type, (sample.task_types == task_type).to_numpy()


def _cells(sample: Sample, column: int, task_type: str, rows: Bools) -> Iterator[Cell]:
    """Every signal at one step, on the groups in `rows`."""
    informative, task, variance = ~sample.zero_variance[rows], sample.task[rows], sample.reward_variance[rows]
    for signal in sample.signals:
        likeness = sample.likeness(signal, column)[rows]
        yield Cell(
            signal=signal,
            step=int(sample.steps[column]),
            task_type=task_type,
            groups=len(task),
            zero_variance=int((~informative).sum()),
            areas=areas(likeness, informative, task),
            correlation=rank_correlation(BY_NAME[signal].sign * likeness, variance),
        )


def _curve_row(cell: Cell) -> dict[str, object]:
    roc = cell.areas.roc if cell.areas else UNKNOWN
    average = cell.areas.precision_recall if cell.areas else UNKNOWN
    return {
        "signal": cell.signal,
        "step": cell.step,
        "task_type": cell.task_type,
        "groups": cell.groups,
        "zero_variance": cell.zero_variance,
        "auroc": _known(roc.value),
        "auroc_low": _known(roc.low),
        "auroc_high": _known(roc.high),
        "average_precision": _known(average.value),
        "average_precision_low": _known(average.low),
        "average_precision_high": _known(average.high),
        "rho": cell.correlation.rho if cell.correlation else None,
        "p_value": cell.correlation.p if cell.correlation else None,
    }


def _points(sample: Sample, convention: Convention, cell: Cell, rows: Bools) -> pa.Table:
    """The curves of a cell, on the groups in `rows` (N,)."""
    rungs = ladder(sample, cell.signal, sample.column(cell.step), convention, rows)
    count = len(rungs.thresholds)
    places = np.unique(np.linspace(0, max(0, count - 1), min(count, _POINTS_A_CURVE)).round().astype(int))
    taken, hits = rungs.taken[places], rungs.true_positives[places]
    informative = cell.groups - cell.zero_variance
    columns = {
        "signal": [cell.signal] * len(places),
        "step": np.full(len(places), cell.step),
        "task_type": [cell.task_type] * len(places),
        "threshold": BY_NAME[cell.signal].sign * rungs.thresholds[places].astype(np.float64),
        "taken": taken,
        "true_positives": hits,
        "precision": hits / taken,
        "recall": _share(hits, cell.zero_variance),
        "false_positive_rate": _share(taken - hits, informative),
        "net_saving": rungs.net_saving[places],
    }
    return pa.table({name: pa.array(columns[name]) for name in POINTS.arrow.names}).cast(POINTS.arrow)


def _share(counts: NDArray[np.int64], whole: int) -> list[float | None]:
    return (counts / whole).tolist() if whole else [None] * len(counts)


def _write(path: Path, table: pa.Table) -> None:
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
