"""The iterations of training runs in one shape: this project's runs, and the tables that the paper's authors gave."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from collect.errors import InputError
from collect.schema import EVALUATIONS, ITERATIONS
from collect.store import check_part, read_run

if TYPE_CHECKING:
    import polars as pl

UNGATED = ("off", "baseline")

# The columns that reports read, under the names of `collect.schema`, and the released tables' names for them.
_RELEASED = {
    "iteration": "iter",
    "groups": "n_groups",
    "groups_cut": "n_groups_cut",
    "loss": "loss",
    "gradient_norm": "grad_norm",
    "reward_mean": "rewards_mean",
    "seconds_rollout": "rollout_secs",
    "seconds_update": "train_secs",
    "seconds_swap": "save_secs",
    "seconds": "iter_secs",
    "zero_advantage_share": "zv_rate",
}
_RELEASED_ONLY = ("n_zero_variance", "seed", "arm")
_PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True, eq=False)
class Log:
    """One training run. `arm` says what its gate did and `seed` which run of it this is; runs of one seed are matched.

    `iterations` has the columns of `collect.schema.ITERATIONS`, null where a released table lacks them, and
    `seconds_training`, the whole iteration without its evaluation; `evaluations` those of `EVALUATIONS`, None where
    there are none.
    """

    arm: str
    seed: int
    iterations: "pl.DataFrame"
    evaluations: "pl.DataFrame | None" = None

    @property
    def name(self) -> str:
        """The arm and the seed in words."""
        return f"{self.arm}, seed {self.seed}"

    @property
    def ungated(self) -> bool:
        """Whether it is an arm that others are held against."""
        return self.arm in UNGATED


def is_training(run: Path) -> bool:
    """Whether a run has iterations of training."""
    return _file(run, "iterations").is_file()


def read_training(run: Path) -> Log:
    """The iterations and evaluations of a training run; InputError when a file is damaged or there is no iteration."""
    import polars as pl

    configuration = read_run(run).configuration
    iterations = _read(_file(run, "iterations"), ITERATIONS.arrow.names)
    if not iterations.height:
        raise InputError(f"{run}: no iteration is done yet; let sr train finish one")
    evaluations = None
    if _file(run, "evaluations").is_file():
        evaluations = _read(_file(run, "evaluations"), EVALUATIONS.arrow.names)
    arm = str(configuration.get("arm") or iterations["gate_mode"][-1])
    iterations = iterations.with_columns(
        pl.col(pl.Categorical).cast(pl.String), seconds_training=pl.col("seconds") - pl.col("seconds_evaluation")
    )
    return Log(arm, int(configuration.get("seed", 0)), iterations, evaluations)


def is_released(path: Path) -> bool:
    """Whether a file is a table of iterations as the paper's authors released them."""
    names = _columns(path)
    return {"iter", "iter_secs"} <= set(names)


def read_released(path: Path) -> list[Log]:
    """The runs in a released table, one for each arm and seed; InputError when a column or a number is missing.

    There `n_zero_variance` counts cut groups among the zero-variance ones; here `groups_zero_variance` is without them.
    """
    import polars as pl

    table = _read_table(path)
    for name in (*_RELEASED.values(), *_RELEASED_ONLY):
        if name not in table.columns:
            raise InputError(f"{path}: the column {name} is missing; a table of iterations needs it")
    whole = dict.fromkeys(("iteration", "groups", "groups_cut"), pl.Int64)
    numbers = [
        pl.col(theirs).cast(whole.get(ours, pl.Float64), strict=False).alias(ours) for ours, theirs in _RELEASED.items()
    ]
    uncut = pl.col("n_zero_variance").cast(pl.Int64, strict=False) - pl.col("n_groups_cut").cast(pl.Int64, strict=False)
    frame = table.select(
        *numbers,
        uncut.alias("groups_zero_variance"),
        pl.col("seed").cast(pl.Int64, strict=False),
        pl.col("arm").cast(pl.String),
    )
    for name in frame.columns:
        if (
            name not in ("loss", "gradient_norm", "zero_advantage_share")
            and (bad := frame[name].is_null().arg_true()).len()
        ):
            raise InputError(
                f"{path}: row {int(bad[0]) + 1}, column {name}: is missing or not a number; correct the table"
            )
    lacking = [pl.lit(None).alias(name) for name in ITERATIONS.arrow.names if name not in frame.columns]
    return [
        Log(
            str(arm),
            int(seed),
            part.drop("arm", "seed").sort("iteration").with_columns(lacking, seconds_training=pl.col("seconds")),
        )
        for (arm, seed), part in frame.sort("arm", "seed").group_by("arm", "seed", maintain_order=True)
    ]


def in_order(logs: Sequence[Log]) -> list[Log]:
    """Ungated arms first, then by arm and seed; InputError when one arm has a seed twice."""
    ordered = sorted(logs, key=lambda log: (not log.ungated, log.arm, log.seed))
    for one, other in pairwise(ordered):
        if (one.arm, one.seed) == (other.arm, other.seed):
            raise InputError(
                f"two runs of {one.name} were given; runs are told apart by arm and seed, give one of them"
            )
    return ordered


def _file(run: Path, name: str) -> Path:
    return run / f"{name}.parquet"


def _read(path: Path, names: Sequence[str]) -> "pl.DataFrame":
    import polars as pl
    from polars.exceptions import PolarsError

    check_part(path)
    try:
        frame = pl.read_parquet(path)
    except (OSError, PolarsError) as error:
        raise InputError(f"{path}: damaged; restore the run from a copy") from error
    return frame.with_columns(pl.lit(None).alias(name) for name in names if name not in frame.columns)


def _columns(path: Path) -> list[str]:
    """The names of a table's columns; none where it cannot be read, which `read_table` then says better."""
    import polars as pl
    from polars.exceptions import PolarsError

    try:
        if _is_parquet(path):
            return list(pl.read_parquet_schema(path))
        return pl.read_csv(path, n_rows=0, infer_schema=False).columns
    except (OSError, UnicodeDecodeError, PolarsError):
        return []


def _read_table(path: Path) -> "pl.DataFrame":
    import polars as pl
    from polars.exceptions import PolarsError

    try:
        return pl.read_parquet(path) if _is_parquet(path) else pl.read_csv(path, infer_schema=False)
    except (OSError, UnicodeDecodeError, PolarsError) as error:
        told = str(error).strip().splitlines()[0][:200]
        raise InputError(f"{path}: cannot be read as a table ({told}); give a CSV or Parquet table") from error


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
