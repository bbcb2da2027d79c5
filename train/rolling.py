"""Where an iteration's groups come from: rollouts now, or the groups of a frozen run, gated as if they were live."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from collect.engine import Engine, derive_seed
from collect.environment import Environments
from collect.errors import InputError
from collect.games import Game
from collect.prompt import Prompt
from collect.rollout import Audit, Failure, Rollout, Settings, Task
from collect.store import RunWriter, scan
from collect.trajectory import Group, Trajectory, group_id
from collect.watch import Watcher
from train.frozen import stored_groups
from train.schedule import Schedule

Counter = Callable[[int], None]  # told how many groups of those asked for are there


@dataclass(frozen=True, slots=True)
class Rolled:
    """The groups that were asked for, in order, without those that `failed` for good; of them, `restored` ones had been
    rolled out before an interruption. `message` is the first complaint.
    """

    groups: list[Group]
    failed: int = 0
    restored: int = 0
    message: str = ""


class Source(Protocol):
    """Where groups come from."""

    def tasks(self, iteration: int) -> list[Task]:
        """The tasks of an iteration, which are numbered from 1."""
        ...

    def fresh(self, taken: int) -> Iterator[Task]:
        """Further tasks, after the first `taken`."""
        ...

    def is_new(self, group: Group) -> bool:
        """Whether nothing was known of the group before: only such say something of the gate that is not known."""
        ...

    async def roll(
        self, tasks: Sequence[Task], version: int, watcher: Watcher | None, audit: Audit | None, count: Counter
    ) -> Rolled:
        """The groups of these tasks, committed to the run, each decided on by the watcher and then the audit."""
        ...


class Live:
    """Rolls groups out with the engine. What the run holds already of an interrupted iteration is read back."""

    def __init__(
        self,
        schedule: Schedule,
        engine: Engine,
        environments: Environments,
        prompt: Prompt,
        rollout: Settings,
        run: RunWriter,
    ) -> None:
        self._schedule = schedule
        self._engine = engine
        self._environments = environments
        self._prompt = prompt
        self._rollout = rollout
        self._run = run

    def tasks(self, iteration: int) -> list[Task]:
        """See `Source`."""
        return self._schedule.tasks(iteration)

    def fresh(self, taken: int) -> Iterator[Task]:
        """See `Source`."""
        return self._schedule.fresh(taken)

    def is_new(self, group: Group) -> bool:
        """See `Source`: always."""
        return True

    async def roll(
        self, tasks: Sequence[Task], version: int, watcher: Watcher | None, audit: Audit | None, count: Counter
    ) -> Rolled:
        """See `Source`."""
        there = self._restored(tasks, version)
        restored, failed, message = len(there), 0, ""
        settings = replace(self._rollout, policy_version=version)
        rollout = Rollout(self._engine, self._environments, self._prompt, settings, watcher, audit)
        count(restored)
        async for outcome in rollout.run([task for task in tasks if task.group_id not in there]):
            if isinstance(outcome, Failure):
                self._run.add_error(outcome.task.group_id, outcome.boundary, outcome.message)
                failed += outcome.final
                message = message or outcome.message
            else:
                self._run.add(outcome)
                there[outcome.id] = outcome
            count(len(there) + failed)
        self._run.flush()
        return Rolled([there[task.group_id] for task in tasks if task.group_id in there], failed, restored, message)

    def _restored(self, tasks: Sequence[Task], version: int) -> dict[str, Group]:
        games = {task.group_id: task.game for task in tasks if task.group_id in self._run.committed}
        if not games:
            return {}
        stored = stored_groups(self._run.folder, only=games.keys(), steps_logged=False)
        restored = {group.id: replace(group, game=games[group.id]) for group in stored}
        for name, group in restored.items():
            # An iteration done again may need fewer fresh groups (visits under 0): a later one takes what is left over.
            if group.policy_version != version and group.visit >= 0:
                raise InputError(
                    f"{self._run.folder}: group {name} belongs to iteration {group.policy_version + 1}, not "
                    f"{version + 1}; the games are not those that the run began with: restore them"
                )
        return restored


class Frozen:
    """Takes the whole groups of a run on disk, in passes, each in an order of its own.

    A group is named anew in every pass after the first, by a later visit, and not audited again: how it ends is known,
    and counting it as evidence twice would make the gate's precision look surer than it is. Groups that were cut are
    left out: what would have become of them is not known.
    """

    def __init__(self, source: Path, groups: int, seed: int, run: RunWriter) -> None:
        """Raises InputError where the source is no run, or has no whole group."""
        self._source = source
        self._groups = groups
        self._seed = seed
        self._run = run
        self._stored = whole_groups(source)
        visits = [task.visit for task in self._stored]
        self._first, self._span = min(visits), max(visits) - min(visits) + 1

    def tasks(self, iteration: int) -> list[Task]:
        """See `Source`."""
        first = (iteration - 1) * self._groups
        return [self._at(place) for place in range(first, first + self._groups)]

    def fresh(self, taken: int) -> Iterator[Task]:
        """None: the run has no others."""
        return iter(())

    def is_new(self, group: Group) -> bool:
        """See `Source`: in the first pass."""
        return group.visit < self._first + self._span

    async def roll(
        self, tasks: Sequence[Task], version: int, watcher: Watcher | None, audit: Audit | None, count: Counter
    ) -> Rolled:
        """See `Source`."""
        names = {task.group_id: self._stored_name(task) for task in tasks}
        stored = stored_groups(self._source, only=set(names.values()), steps_logged=watcher is not None)
        by_name = {group.id: group for group in stored}
        groups = []
        for task in tasks:
            group = replace(by_name[names[task.group_id]], visit=task.visit, policy_version=version, decision=None)
            reviewed = audit if self.is_new(group) else None
            groups.append(replayed(group, watcher, reviewed) if watcher else group)
            if task.group_id not in self._run.committed:
                self._run.add(groups[-1])
            count(len(groups))
        self._run.flush()
        return Rolled(groups)

    def _at(self, place: int) -> Task:
        number, index = divmod(place, len(self._stored))
        order = list(range(len(self._stored)))
        random.Random(derive_seed(self._seed, "frozen", number)).shuffle(order)
        task = self._stored[order[index]]
        return Task(task.game, task.visit + number * self._span)

    def _stored_name(self, task: Task) -> str:
        return group_id(task.game, (task.visit - self._first) % self._span + self._first)


def whole_groups(source: Path) -> list[Task]:
    """The groups of a run that were not cut, as tasks, sorted; InputError where the source is no run or has none."""
    import polars as pl

    columns = ("game_id", "split", "task_type", "visit")
    cut = pl.col("gate_enforced").fill_null(value=False)
    rows = scan(source, "groups").filter(~cut).select(columns).sort("game_id", "visit").collect()
    if rows.is_empty():
        raise InputError(f"--from {source}: holds no whole group to learn from; let sr collect finish some")
    return [Task(Game(name, Path(name), split, kind), visit) for name, split, kind, visit in rows.iter_rows()]


def replayed(group: Group, watcher: Watcher, audit: Audit | None) -> Group:
    """A whole group as it would have been under a watcher: cut where it says so, with what came later left out."""
    for step in watcher.steps:
        prefixes = [trajectory.steps[:step] for trajectory in group.trajectories]
        eligible = any(len(trajectory.steps) > step for trajectory in group.trajectories)
        decision = watcher.decide(prefixes, eligible=eligible, step=step)
        if audit is not None:
            decision = audit(group.id, decision)
        group = replace(group, decision=decision)
        if decision.enforced:
            return replace(group, trajectories=tuple(_until(t, step) for t in group.trajectories))
        if decision.flagged or not eligible:
            break
    return group


def _until(trajectory: Trajectory, step: int) -> Trajectory:
    """The trajectory as it was after `step` steps, had it been cut there."""
    if len(trajectory.steps) <= step:
        return trajectory
    steps = trajectory.steps[:step]
    tokens = steps[-1].prompt_tokens + steps[-1].reply_tokens
    return Trajectory(
        reward=sum(s.reward for s in steps),
        won=False,
        ending="cut",
        steps=steps,
        token_ids=trajectory.token_ids[:tokens],
        policy_mask=trajectory.policy_mask[:tokens],
        logprobs=trajectory.logprobs[: sum(s.reply_tokens for s in steps)],
        final_observation=trajectory.steps[step].observation,
    )
