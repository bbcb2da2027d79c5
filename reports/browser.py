"""The groups that the browser in the page shows: a line about each, and all its steps, packed and opened on demand."""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from calibrate.blocks import deeds, views
from calibrate.outcomes import outcomes
from calibrate.rules import Rule
from calibrate.sample import Sample
from calibrate.signals import BY_NAME
from collect.errors import InputError
from collect.store import check_part, committed_parts, scan
from reports.visible import visible

MOST_GROUPS = 1_000
MOST_BYTES = 11 * 2**20  # of the groups in a page, which then stays under 15 MB

_GROUP_COLUMNS = ("group_id", "game_id", "task_type", "group_size", "horizon", "policy_version", "rewards")
_DECISION_COLUMNS = ("gate_step", "gate_score", "gate_threshold", "gate_flagged", "gate_enforced", "gate_audited")
_TRAJECTORY_COLUMNS = ("trajectory", "reward", "won", "ending", "actions", "final_observation")
_STEP_COLUMNS = ("trajectory", "step", "observation", "reply", "match")
_MATCHES = ("exact", "folded", "fuzzy", "none")


@dataclass(frozen=True, eq=False)
class Shelf:
    """The groups of a run that stand in the page, out of `of`; `signal` is the one drawn above each.

    A group is a mapping that becomes JSON: what the list shows and filters by, and `packed`, the base64 of its deflated
    steps.
    """

    run: str
    signal: str
    groups: Sequence[Mapping[str, Any]]
    of: int


@dataclass(frozen=True, eq=False)
class Replayed:
    """The rule whose decisions are shown where a run recorded none, on the groups of a sample."""

    rule: Rule
    sample: Sample


def shelve(run: Path, name: str, signal: str, replayed: Replayed | None, share: float = 1.0) -> Shelf:
    """Choose and pack groups of a run: all of them, or as many as fit, drawn by a hash of their ids.

    `share` is what of the page's room this run may take. Raises InputError when a part is damaged.
    """
    groups = scan(run, "groups").select(*_GROUP_COLUMNS, "gate_evaluated", *_DECISION_COLUMNS).collect()
    total = groups.height  # now: a run that is being written grows meanwhile
    ids = sorted(groups["group_id"], key=_hash)[: max(1, int(MOST_GROUPS * share))]
    groups = groups.filter(pl.col("group_id").is_in(ids))
    lines, lengths = _lines(run, groups, signal)
    told = {} if replayed is None else _replayed(replayed)
    packed = dict(_packed(run, set(ids)))
    shown, room = [], int(MOST_BYTES * share)
    by_id = {row["group_id"]: row for row in groups.iter_rows(named=True)}
    for group in ids:
        if group not in packed:
            continue
        entry = _entry(by_id[group], lines.get(group), lengths.get(group, ()), told.get(group), packed[group])
        room -= len(entry["packed"]) + 600
        if room < 0:
            break
        shown.append(entry)
    shown.sort(key=lambda entry: (entry["iteration"], entry["id"]))
    return Shelf(name, signal, shown, total)


def _hash(group: str) -> bytes:
    return hashlib.sha256(group.encode()).digest()


def _lines(run: Path, groups: pl.DataFrame, signal: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The signal of each group at K = 1 to horizon - 1, and the lengths of its trajectories; both by id."""
    chosen, lines, lengths_of = BY_NAME[signal], {}, {}
    for (size, horizon), part in groups.sort("group_id").group_by("group_size", "horizon", maintain_order=True):
        ids = part["group_id"]
        lengths = np.zeros((len(ids), size), np.int32)
        values = np.full((len(ids), horizon - 1), np.nan)
        for here, done, _ in deeds(run, ids, size, horizon):
            lengths[here] = done.lengths
            if chosen.source == "deeds":
                values[here] = chosen.sweep(done.until(horizon - 1))
        if chosen.source == "views":
            for here, met, *_ in views(run, ids, lengths, horizon):
                values[here] = chosen.sweep(met.until(horizon - 1))
        for place, group in enumerate(ids):
            last = max(1, min(horizon - 1, int(lengths[place].max())))
            lines[group] = [_short(value) for value in values[place, :last].tolist()]
            lengths_of[group] = lengths[place].tolist()
    return lines, lengths_of


def _short(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None


def _replayed(replayed: Replayed) -> dict[str, dict[str, Any]]:
    """What the rule says of each group of the sample: the decision at the step where it flags, else at its last."""
    rule, sample = replayed.rule, replayed.sample
    at = rule.flags(sample)
    decisions = {}
    for place, group in enumerate(sample.group_ids):
        flagged = at[place] >= 0
        step = int(sample.steps[at[place]]) if flagged else rule.steps[-1]
        column = sample.column(step)
        score, threshold, _ = rule.judge(
            {name: float(sample.signals[name][place, column]) for name in rule.signals}, step
        )
        decisions[group] = {"step": step, "score": float(score), "threshold": threshold, "flagged": bool(flagged)}
    return decisions


def _entry(
    row: Mapping[str, Any], line: Any, lengths: Sequence[int], told: Mapping[str, Any] | None, packed: str
) -> dict[str, Any]:
    cut = bool(row["gate_enforced"])
    outcome = "cut" if cut else str(outcomes(np.array([row["rewards"]], np.float64))[0])
    decision = _decision(row, told)
    return {
        "id": visible(row["group_id"], 300),
        "task": visible(row["task_type"] or "", 100),
        "iteration": row["policy_version"] or 0,
        "outcome": outcome,
        "rewards": [round(reward, 4) for reward in row["rewards"]],
        "horizon": row["horizon"],
        "signal": line,
        "gate": decision,
        "verdict": _verdict(decision, outcome, lengths),
        "packed": packed,
    }


def _decision(row: Mapping[str, Any], told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The recorded decision, else the replayed one; `made` says which."""
    if row["gate_evaluated"]:
        recorded = {name.removeprefix("gate_"): row[name] for name in _DECISION_COLUMNS}
        made = "live" if row["gate_enforced"] else "audited" if row["gate_audited"] else "watched"
        return {name: recorded[name] for name in ("step", "score", "threshold", "flagged")} | {"made": made}
    return None if told is None else {**told, "made": "replayed"}


def _verdict(decision: Mapping[str, Any] | None, outcome: str, lengths: Sequence[int]) -> str:
    """Right or wrong: over (nothing was left to cut), unknown (cut, so its outcome is not known), or none."""
    if decision is None:
        return "none"
    if outcome == "cut":
        return "unknown"
    if not any(length > decision["step"] for length in lengths):
        return "over"
    if decision["flagged"]:
        return "wrong" if outcome == "mixed" else "right"
    return "kept" if outcome == "mixed" else "missed"


def _packed(run: Path, chosen: set[str]) -> Iterator[tuple[str, str]]:
    """Each chosen group with all its steps, part by part, so that one part at a time is in memory."""
    wanted = pa.array(sorted(chosen))
    parts = committed_parts(run, "trajectories")
    steps = {part.name: part for part in committed_parts(run, "steps")}  # more, where the run is being written
    for part in parts:
        whole = _by_group(part, _TRAJECTORY_COLUMNS, wanted)
        taken = _by_group(steps[part.name], _STEP_COLUMNS, wanted)
        for group, rows in whole.items():
            yield group, _pack(_detail(rows, taken.get(group, [])))


def _by_group(part: Path, columns: Sequence[str], wanted: pa.Array) -> dict[str, list[dict[str, Any]]]:
    check_part(part)
    try:
        table = pq.read_table(part, columns=["group_id", *columns], filters=pa.compute.field("group_id").isin(wanted))
    except (OSError, pa.ArrowException) as error:
        told = str(error).strip().partition("\n")[0]
        raise InputError(f"{part}: damaged ({told}); restore the run from a copy") from error
    found: dict[str, list[dict[str, Any]]] = {}
    for row in zip(*(_values(table[name]) for name in table.column_names), strict=True):
        found.setdefault(row[0], []).append(dict(zip(columns, row[1:], strict=True)))
    return found


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values; of text, bytes that are no UTF-8 become U+FFFD."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type):
        return [_text(value) for value in column.cast(pa.binary()).to_pylist()]
    if pa.types.is_list(column.type) and pa.types.is_string(column.type.value_type):
        lists = column.cast(pa.list_(pa.binary())).to_pylist()
        return [None if values is None else [_text(value) for value in values] for values in lists]
    return list(column.to_pylist())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _detail(trajectories: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A group's steps with each distinct text once: `texts`, and their numbers elsewhere (-1 where there is none)."""
    texts: dict[str, int] = {}

    def number(text: str | None) -> int:
        return -1 if text is None else texts.setdefault(visible(text), len(texts))

    told: dict[tuple[int, int], Mapping[str, Any]] = {(step["trajectory"], step["step"]): step for step in steps}
    nothing = dict.fromkeys(("observation", "reply", "match"))
    rows = []
    for whole in sorted(trajectories, key=lambda row: row["trajectory"]):
        # A run may have been logged without its steps; the actions are in its trajectories.
        own = [told.get((whole["trajectory"], k), nothing) for k in range(1, len(whole["actions"]) + 1)]
        rows.append(
            {
                "reward": whole["reward"],
                "won": whole["reward"] > 0 if whole["won"] is None else whole["won"],
                "ending": whole["ending"],
                "final": number(whole["final_observation"]),
                "actions": [number(action) for action in whole["actions"]],
                "seen": [number(step["observation"]) for step in own],
                "said": [number(step["reply"]) for step in own],
                "match": [_MATCHES.index(step["match"]) if step["match"] in _MATCHES else -1 for step in own],
            }
        )
    return {"trajectories": rows, "texts": list(texts)}


def _pack(detail: Mapping[str, Any]) -> str:
    text = json.dumps(detail, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(squeezed.compress(text) + squeezed.flush()).decode()
