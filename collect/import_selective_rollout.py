"""The rollouts.jsonl of the paper's authors: one group a line."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated

from pydantic import Field

from collect.games import SPLITS, TASK_TYPES
from collect.import_groups import Count, Import, Record
from collect.logged import LoggedGroup, LoggedStep, LoggedTrajectory


class _Step(Record):
    obs: str | None = None
    action: str | None
    raw_completion: str | None = None
    reward: float | None = None


class _Trajectory(Record):
    total_reward: float
    won: bool | None = None
    steps: list[_Step]


class _Group(Record):
    task_id: str
    game_file: str | None = None
    group_size: int | None = None
    max_steps: Annotated[Count, Field(ge=1)]
    wall_time_sec: float | None = None
    trajectories: list[_Trajectory]


def groups(log: Import) -> Iterator[LoggedGroup]:
    """The groups of a rollouts.jsonl. A step without an action that could be parsed has an empty one."""
    for file in log.source.files:
        for place, group in log.records(file, _Group):
            if wrong := _contradiction(group):
                log.source.malformed.add(place, wrong)
            else:
                yield _logged(group)


def _contradiction(group: _Group) -> str | None:
    size = len(group.trajectories)
    if group.group_size not in (None, size):
        return f"{size} trajectories, but group_size {group.group_size}"
    if size < 2:
        return f"{size} trajectories; a group has at least 2"
    if not group.task_id:
        return "task_id is empty"
    longest = max(len(trajectory.steps) for trajectory in group.trajectories)
    return f"{longest} steps, but max_steps {group.max_steps}" if longest > group.max_steps else None


def _logged(group: _Group) -> LoggedGroup:
    task_type = group.task_id.partition("-")[0]
    folders = PurePath(group.game_file or "").parts
    return LoggedGroup(
        game_id=group.task_id,
        trajectories=tuple(_trajectory(trajectory) for trajectory in group.trajectories),
        horizon=group.max_steps,
        split=next((split for split in SPLITS if split in folders), None),
        task_type=task_type if task_type in TASK_TYPES else None,
        seconds=group.wall_time_sec,
    )


def _trajectory(trajectory: _Trajectory) -> LoggedTrajectory:
    steps = [LoggedStep(step.action or "", step.obs, step.raw_completion, step.reward) for step in trajectory.steps]
    return LoggedTrajectory(trajectory.total_reward, tuple(steps), trajectory.won)
