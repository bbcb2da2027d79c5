"""From the rollouts of a run to a sample, and to the run's signals.parquet."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from calibrate.blocks import deeds, views
from calibrate.experience import eligible
from calibrate.outcomes import outcomes
from calibrate.sample import Cost, Sample
from calibrate.scratch import Scratch
from calibrate.signals import REGISTRY, SIGNALS
from collect.errors import InputError
from collect.files import replacing
from collect.progress import Update
from collect.schema import GROUPS
from collect.store import scan

# How many groups are written at a time: what bounds the memory of a large run.
_GROUPS_AT_ONCE = 4096
_NO_TASK_TYPE = "unknown"  # of some groups of an imported run whose others have one
# What an imported run may lack, as fields of Views.
_WORDS = {
    "observations": "observations",
    "commands": "admissible commands",
    "refused": "how replies were matched",
    "logprobs": "log-probabilities",
    "tokens": "numbers of tokens",
}


def read_rollouts(
    run: Path, reward_tolerance: float, keep: int | None = None, part: int = 0, progress: Update | None = None
) -> Sample:
    """The sample of a run's groups at every K = 1 to horizon - 1; with `keep`, of that many trajectories of each group,
    drawn by a hash of its id, as if the groups had been so small. No two parts, from 0 on, share a trajectory.

    Groups that a gate cut (their rewards are truncated) and groups with missing trajectories are left out, and noted.
    So are signals that read what an imported run lacks; where it lacks the number of tokens, costs count steps.

    Raises:
        InputError: no run, a damaged one, nothing left to calibrate on, or groups that differ in size or horizon.
    """
    try:
        return _read(run, reward_tolerance, keep, part, progress)
    except PolarsError as error:
        raise InputError(f"{run}: damaged ({_first_line(error)}); restore the run from a copy") from error


@dataclass(eq=False)
class _Draft:
    """The groups of a sample in the making, and their arrays, one row a group. `members` are the trajectories that
    count; `rewards` and `lengths` are of all.
    """

    groups: pl.DataFrame
    members: NDArray[np.int64]
    rewards: NDArray[np.float64]
    lengths: NDArray[np.int32]
    running: NDArray[np.bool_]
    tokens: NDArray[np.int64]
    tokens_after: NDArray[np.int32]
    tokens_known: bool
    steps_after: NDArray[np.int32]
    signals: Scratch
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        run: Path,
        groups: pl.DataFrame,
        members: NDArray[np.int64],
        size: int,
        horizon: int,
        notes: tuple[str, ...],
    ) -> Self:
        """Nothing but the rewards is known yet."""
        shape = (groups.height, horizon - 1)
        # Column by column in memory, as fits read them. Signals in double precision, as a live gate computes: a
        # threshold may lie on a value that the signal takes.
        return cls(
            groups=groups,
            members=members,
            rewards=_rewards(run, groups, size),
            lengths=np.zeros((groups.height, size), np.int32),
            running=np.zeros(shape, np.bool_, order="F"),
            tokens=np.zeros(groups.height, np.int64),
            tokens_after=np.zeros(shape, np.int32, order="F"),
            tokens_known=True,
            steps_after=np.zeros(shape, np.int32, order="F"),
            signals=Scratch([signal.name for signal in REGISTRY], shape),
            notes=notes,
        )

    def keep(self, run: Path, there: NDArray[np.bool_], missing: str) -> None:
        """Leave the groups out that are not `there` (N,), and note it; InputError when none is."""
        if there.all():
            return
        names = self.groups.filter(~there)["group_id"]
        self.notes += (f"left out: {len(names)} groups with missing {missing} (the first is {names[0]!r})",)
        if not there.any():
            raise InputError(f"{run}: no group has all its {missing}; restore the run from a copy")
        self.groups = self.groups.filter(there)
        for name in ("members", "rewards", "lengths", "running", "tokens", "tokens_after", "steps_after"):
            setattr(self, name, getattr(self, name)[there])
        self.signals = self.signals.rows(there)

    def forget(self, lacking: frozenset[str]) -> None:
        """Leave the signals out that read what the run is `lacking` (fields of `Views`), and note it."""
        unknown = [signal.name for signal in REGISTRY if lacking & set(signal.reads)]
        if unknown:
            without = ", ".join(words for field, words in _WORDS.items() if field in lacking)
            self.notes += (f"not known: {', '.join(unknown)} (this run was imported without {without})",)
        self.signals.forget(unknown)


def _read(run: Path, reward_tolerance: float, keep: int | None, part: int, progress: Update | None) -> Sample:
    groups, notes, no_draw = _whole_groups(run)
    size, horizon = (_same(run, groups, column) for column in ("group_size", "horizon"))
    if size < 2 or horizon < 2:
        raise InputError(f"{run}: group size {size}, horizon {horizon}; both must be at least 2 to calibrate a gate")
    draft = _Draft.of(run, groups, _members(groups["group_id"], size, keep or size, part), size, horizon, notes)
    read = _counter(progress, groups.height)
    _read_deeds(run, draft, size, horizon, read)
    _read_views(run, draft, horizon, read)
    rewards = np.take_along_axis(draft.rewards, draft.members, axis=1)
    lengths = np.take_along_axis(draft.lengths, draft.members, axis=1)
    steps = Cost("steps", draft.steps_after, lengths.sum(axis=1, dtype=np.int64))
    types = draft.groups["task_type"]
    return Sample(
        group_size=keep or size,
        horizon=horizon,
        steps=np.arange(1, horizon),
        group_ids=draft.groups["group_id"],
        tasks=draft.groups["game_id"],
        task_types=None if types.null_count() == len(types) else types.fill_null(_NO_TASK_TYPE),
        outcomes=outcomes(rewards, reward_tolerance),
        reward_variance=rewards.var(axis=1),
        signals=draft.signals,
        eligible=draft.running,
        eligible_exactly=True,
        cost=Cost("tokens", draft.tokens_after, draft.tokens) if draft.tokens_known else steps,
        step_cost=steps,
        reward_tolerance=reward_tolerance,
        notes=draft.notes,
        no_draw=no_draw,
    )


def _counter(progress: Update | None, groups: int) -> Callable[[int], None]:
    """Counts groups, of which each is read twice: what its trajectories tell, and what its steps do."""
    done = 0

    def read(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done // 2, groups)

    return read


def _read_deeds(run: Path, draft: _Draft, size: int, horizon: int, read: Callable[[int], None]) -> None:
    """Fill in what the trajectories tell."""
    steps, there = np.arange(1, horizon), np.zeros(draft.groups.height, np.bool_)
    for here, whole, tokens_of_all in deeds(run, draft.groups["group_id"], size, horizon):
        there[here] = True
        draft.lengths[here] = whole.lengths
        done, members = whole, draft.members[here]
        if members.shape[1] < size:
            done = whole.only(members)
        draft.running[here] = eligible(done.lengths, steps)
        draft.steps_after[here] = np.maximum(done.lengths[:, :, None] - steps, 0).sum(axis=1)
        if tokens_of_all is None:
            draft.tokens_known = False
        else:
            spent = np.take_along_axis(tokens_of_all, members[:, :, None], axis=1).sum(axis=1).cumsum(axis=1)
            draft.tokens[here] = spent[:, -1]
            draft.tokens_after[here] = spent[:, -1:] - spent[:, :-1]
        for signal in REGISTRY:
            if signal.source == "deeds":
                draft.signals[signal.name][here] = signal.sweep(done.until(horizon - 1))
        read(len(here))
    draft.keep(run, there, "trajectories")


def _read_views(run: Path, draft: _Draft, horizon: int, read: Callable[[int], None]) -> None:
    """Fill in what the steps tell."""
    there, lacking = np.zeros(draft.groups.height, np.bool_), frozenset[str]()
    for here, whole, absent in views(run, draft.groups["group_id"], draft.lengths, horizon):
        there[here] = True
        lacking |= absent
        members = draft.members[here]
        met = whole.only(members) if members.shape[1] < draft.lengths.shape[1] else whole
        for signal in REGISTRY:
            if signal.source == "views":
                draft.signals[signal.name][here] = signal.sweep(met.until(horizon - 1))
        read(len(here))
    draft.keep(run, there, "steps")
    draft.forget(lacking)


def write_signals(path: Path, sample: Sample) -> None:
    """Write the sample of a run as a table of `SIGNALS`, sorted by group and step, whole or not at all.

    Raises:
        InputError: the place cannot be written to.
    """
    try:
        with replacing(path) as temporary, pq.ParquetWriter(temporary, SIGNALS.arrow, compression="zstd") as writer:
            for start in range(0, sample.size, _GROUPS_AT_ONCE):
                writer.write_table(_signal_rows(sample, slice(start, start + _GROUPS_AT_ONCE)))
    except OSError as error:
        # Arrow writes a text of its own in the place of the system's.
        why = os.strerror(error.errno) if error.errno else _first_line(error)
        raise InputError(f"{path}: cannot be written ({why}); make the run's folder writable") from error


def _signal_rows(sample: Sample, part: slice) -> pa.Table:
    ids = sample.group_ids[part]
    groups, steps = len(ids), len(sample.steps)
    of_group = np.repeat(np.arange(groups), steps)
    columns = {
        "group_id": ids.to_numpy()[of_group],
        "game_id": sample.tasks[part].to_numpy()[of_group],
        "task_type": None if sample.task_types is None else sample.task_types[part].to_numpy()[of_group],
        "group_size": np.full(groups * steps, sample.group_size),
        "horizon": np.full(groups * steps, sample.horizon),
        "step": np.tile(sample.steps, groups),
        "eligible": sample.eligible[part].ravel(),
        "outcome": sample.outcomes[part][of_group],
        "reward_variance": sample.reward_variance[part][of_group],
        "reward_tolerance": np.full(groups * steps, sample.reward_tolerance),
        **{name: sample.signals[name][part].ravel() for name in sample.signals},
        "no_draw": np.full(groups * steps, sample.no_draw) if sample.no_draw else None,
    }
    unknown = pa.nulls(groups * steps)
    arrays = [unknown if columns.get(name) is None else pa.array(columns[name]) for name in SIGNALS.arrow.names]
    return pa.table(arrays, names=SIGNALS.arrow.names).cast(SIGNALS.arrow)


def _whole_groups(run: Path) -> tuple[pl.DataFrame, tuple[str, ...], str]:
    """The groups to calibrate on, sorted by id; what was left out, and what else is to be known; and why they are no
    draw of tasks that one policy rolled out, if they are not.
    """
    columns = (
        "group_id",
        "game_id",
        "task_type",
        "group_size",
        "horizon",
        "rewards",
        "gate_enforced",
        "policy_version",
    )
    groups = scan(run, "groups").select(columns).sort("group_id").collect()
    failed = scan(run, "errors").select("group_id").unique().collect()
    notes: tuple[str, ...] = ()
    owed = failed.join(groups, on="group_id", how="anti").height
    if owed:
        notes += (f"left out: {owed} groups that failed and are owed (run sr collect again to have them)",)
    cut = pl.col("gate_enforced").fill_null(value=False)
    whole = groups.filter(~cut)
    no_draw = ""
    if whole.height < groups.height:
        no_draw = f"a gate cut {groups.height - whole.height} of its groups, and the others are those that it let go on"
        notes += (
            f"left out: {groups.height - whole.height} groups that a gate cut (their rewards are truncated); the "
            "others are those that it let go on, and rates among them are not those of ungated rollouts",
        )
    if not whole.height:
        if not (folder := run / GROUPS.name).is_dir():
            raise InputError(f"{folder}: missing, so the run holds no groups; restore the run from a copy")
        left_out = f" ({'; '.join(notes)})" if notes else ""
        raise InputError(f"{run}: no finished ungated group to calibrate on{left_out}; let sr collect finish some")
    versions = whole["policy_version"].drop_nulls().n_unique()
    if versions > 1:
        no_draw = no_draw or f"its groups were rolled out by {versions} versions of a policy in training"
        notes += (
            f"policy: {versions} versions of one in training; figures are of their mixture, and the next differs",
        )
    return whole, notes, no_draw


def _members(ids: pl.Series, size: int, keep: int, part: int) -> NDArray[np.int64]:
    """The trajectories that count, ascending: all, or as many of each group, dealt by a hash of its id. (N, keep)."""
    if keep == size:
        return np.broadcast_to(np.arange(size), (len(ids), size))
    seeds = [int.from_bytes(hashlib.sha256(group.encode()).digest()[:8]) for group in ids]
    drawn = [np.random.default_rng(seed).permutation(size)[part * keep : (part + 1) * keep] for seed in seeds]
    return np.sort(np.array(drawn, np.int64), axis=1)


def _same(run: Path, groups: pl.DataFrame, column: str) -> int:
    """The one value of a column; InputError with the counts when groups differ."""
    counts = groups[column].value_counts().sort(column).rows()
    if len(counts) > 1:
        listed = ", ".join(f"{value} in {count}" for value, count in counts)
        raise InputError(f"{run}: {column} differs between groups ({listed} groups); a gate is fitted at one {column}")
    return int(counts[0][0])


def _rewards(run: Path, groups: pl.DataFrame, size: int) -> NDArray[np.float64]:
    """Final rewards, (N, G)."""
    odd = groups.filter(pl.col("rewards").list.len() != size)
    if odd.height:
        raise InputError(
            f"{run}: group {odd['group_id'][0]!r} has {len(odd['rewards'][0])} rewards, not {size}; "
            "restore the run from a copy"
        )
    rewards = groups["rewards"].explode().to_numpy().reshape(-1, size)
    bad = np.flatnonzero(~np.isfinite(rewards).all(axis=1))
    if len(bad):
        raise InputError(
            f"{run}: group {groups['group_id'][int(bad[0])]!r} has a reward that is no finite number; "
            "restore the run from a copy"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        large = np.flatnonzero(~np.isfinite(rewards.var(axis=1)))
    if len(large):
        first = int(large[0])
        raise InputError(
            f"{run}: group {groups['group_id'][first]!r} has rewards as large as {np.abs(rewards[first]).max():g}, "
            "whose variance no number holds; scale the rewards and make the run again"
        )
    return np.asarray(rewards, np.float64)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
