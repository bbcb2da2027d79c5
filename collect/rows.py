"""A group as rows of the tables of a run: checked, and its text made fit for UTF-8."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import pyarrow as pa

from collect.errors import InputError
from collect.schema import Table
from collect.trajectory import Group

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows of one group: one of `groups`, those of `trajectories` and of `steps`."""

    group: Row
    trajectories: tuple[Row, ...]
    steps: tuple[Row, ...]

    @classmethod
    def of(cls, group: Group) -> Self:
        """Those of a group that was rolled out."""
        return cls(group_row(group), tuple(trajectory_rows(group)), tuple(step_rows(group)))

    @property
    def id(self) -> str:
        """The group's name in every table of the run."""
        return str(self.group["group_id"])


def as_arrow(table: Table, rows: Sequence[Row]) -> pa.Table:
    """The rows in the table's fixed arrow types. Lone surrogates, which UTF-8 cannot hold, become U+FFFD."""
    columns = {c.name: [_storable(row[c.name]) for row in rows] for c in table.columns}
    return pa.Table.from_pydict(columns, schema=table.arrow)


def check_group(group: Group) -> None:
    """Raise ValueError when a group contradicts itself: that is a bug of whoever made it."""
    if len(group.trajectories) < 2:
        raise ValueError(f"group {group.id} has {len(group.trajectories)} trajectories; at least 2 are needed")
    if group.started.tzinfo is None:
        raise ValueError(f"group {group.id}: `started` has no time zone")
    if _utf8(group.id) != group.id:
        raise InputError(f"{group.game.path}: the folder's name is not valid UTF-8; rename it")
    for index, trajectory in enumerate(group.trajectories):
        where = f"group {group.id}, trajectory {index}"
        if len(trajectory.steps) > group.horizon:
            raise ValueError(f"{where}: {len(trajectory.steps)} steps at horizon {group.horizon}")
        if len(trajectory.token_ids) != len(trajectory.policy_mask):
            raise ValueError(
                f"{where}: {len(trajectory.token_ids)} token ids, {len(trajectory.policy_mask)} in the mask"
            )
        sampled = sum(trajectory.policy_mask)
        if sampled != len(trajectory.logprobs):
            raise ValueError(f"{where}: {sampled} sampled tokens, {len(trajectory.logprobs)} log-probabilities")
        if sampled != sum(step.reply_tokens for step in trajectory.steps):
            raise ValueError(f"{where}: {sampled} sampled tokens, but its steps count another number")


def group_row(group: Group) -> Row:
    """The row of `groups`."""
    decision = group.decision
    return {
        "group_id": group.id,
        "game_id": group.game.id,
        "split": group.game.split,
        "task_type": group.game.task_type,
        "visit": group.visit,
        "group_size": len(group.trajectories),
        "horizon": group.horizon,
        "policy_version": group.policy_version,
        "seed": group.seed,
        "rewards": [trajectory.reward for trajectory in group.trajectories],
        "started": group.started,
        "seconds": group.seconds,
        "gate_evaluated": decision is not None,
        "gate_step": decision and decision.step,
        "gate_score": decision and decision.score,
        "gate_threshold": decision and decision.threshold,
        "gate_flagged": decision and decision.flagged,
        "gate_enforced": decision and decision.enforced,
        "gate_audited": decision and decision.audited,
    }


def trajectory_rows(group: Group) -> Iterator[Row]:
    """The rows of `trajectories`."""
    symbols = action_symbols([trajectory.actions for trajectory in group.trajectories])
    for index, trajectory in enumerate(group.trajectories):
        yield {
            "group_id": group.id,
            "trajectory": index,
            "reward": trajectory.reward,
            "won": trajectory.won,
            "length": len(trajectory.steps),
            "ending": trajectory.ending,
            "actions": trajectory.actions,
            "action_symbols": symbols[index],
            "reply_tokens": [step.reply_tokens for step in trajectory.steps],
            "token_ids": trajectory.token_ids,
            "policy_mask": trajectory.policy_mask,
            "logprobs": trajectory.logprobs,
            "final_observation": trajectory.final_observation,
        }


def step_rows(group: Group) -> Iterator[Row]:
    """The rows of `steps`, numbered from 1."""
    for index, trajectory in enumerate(group.trajectories):
        for number, step in enumerate(trajectory.steps, start=1):
            row = {field.name: getattr(step, field.name) for field in fields(step)}
            yield {"group_id": group.id, "trajectory": index, "step": number, **row}


def action_symbols(actions: Sequence[Sequence[str]]) -> list[str]:
    """Each trajectory's actions as one character a distinct action of the group, in order of first appearance."""
    symbol_of: dict[str, str] = {}

    def text(sequence: Sequence[str]) -> str:
        return "".join(symbol_of.setdefault(_utf8(a), _symbol(len(symbol_of))) for a in sequence)

    return [text(sequence) for sequence in actions]


def _symbol(index: int) -> str:
    """A printable character of its own: from U+4E00 on, past the surrogates, which are no characters."""
    code = 0x4E00 + index
    return chr(code if code < 0xD800 else code + 0x800)


def _storable(value: Any) -> Any:
    """The value with every text in it made fit for UTF-8."""
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, tuple | list) and value and isinstance(value[0], str):
        return [_utf8(text) for text in value]
    return value


def _utf8(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD, which is all that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
