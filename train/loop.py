"""The iterations of training: roll out, gate, learn, hand the new adapter to the engine, evaluate, and again.

Whatever is decided is settled between iterations, and within one depends on names and seeds alone, never on what was
faster. So an iteration that is done again does the same, and arms of one seed play the same games.
"""

import asyncio
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from calibrate import gate as gates
from calibrate.gate import Gate
from collect.engine import Engine
from collect.errors import SelectiveRolloutError
from collect.policy import Policy
from collect.rollout import Task
from collect.rows import Row
from collect.schema import EVALUATIONS
from collect.store import RunWriter
from collect.trajectory import Group
from train import checkpoint
from train.batch import Example, examples_of
from train.checkpoint import Progress
from train.composition import Prompts, batch, missing, pass_over, updated_streaks
from train.evaluation import Evaluator
from train.gating import GATE_FILE, Gating, TimedWatcher, after_iteration, watcher_of
from train.iteration import Clock, Harvest, iteration_row
from train.learner import Learner, Update
from train.log import Log, evaluation_row
from train.rolling import Source
from train.settings import Settings

ADAPTERS = "adapters"


class Screen(Protocol):
    """Who watches a run."""

    def say(self, line: str) -> None:
        """Something that happened."""
        ...

    def show(self, iteration: int, groups: int, asked: int) -> None:
        """So many groups of an iteration are there, of how many."""
        ...

    def iteration(self, row: Row) -> None:
        """An iteration is done."""
        ...

    def evaluation(self, row: Row) -> None:
        """An evaluation is done."""
        ...


class Training:
    """A training run; `progress` says how far it is. Everything is opened by who makes it, and closed there."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        run: RunWriter,
        source: Source,
        learner: Learner,
        engine: Engine | None,
        evaluator: Evaluator | None,
        log: Log,
        screen: Screen,
        progress: Progress,
    ) -> None:
        self.progress = progress
        self._settings = settings
        self._policy = policy
        self._run = run
        self._source = source
        self._learner = learner
        self._engine = engine
        self._evaluator = evaluator
        self._log = log
        self._screen = screen
        self._counted_until = 0.0
        self._thread = ThreadPoolExecutor(1, "update")  # asyncio would wait for one of its own

    async def run(self, iterations: int) -> None:
        """Train until so many iterations are done.

        Raises:
            SelectiveRolloutError: every group of an iteration failed, or the disk refuses; what was done is kept.
        """
        if self.progress.iteration == 0 and checkpoint.newest(self._run.folder) is None:
            await self._evaluate(0)
            self._save(self.progress)
        while self.progress.iteration < iterations:
            await self._iterate(self.progress.iteration + 1, last=self.progress.iteration + 1 == iterations)

    async def _iterate(self, iteration: int, last: bool) -> None:
        # From the row of the iteration before on: what came after it, such as its checkpoint, counts here.
        progress, clock = self.progress, Clock(self._counted_until or time.perf_counter())
        gating = progress.gating
        timed = TimedWatcher(gating.rule) if gating.acts and gating.rule is not None else None
        # A gate can be fitted only on groups whose steps were logged; those of a frozen run are logged there.
        wanted = self._settings.log_steps == "all" or gating.stage == "warmup"
        self._run.log_steps = wanted and self._settings.from_run is None
        self._learner.sleep()
        with clock.of("rollout"):
            harvest = await self._harvest(iteration, timed)
        chosen = batch(harvest.groups, self._settings.groups or 0, self._settings.drop_zero_variance)
        with clock.of("update"):
            if self._learner.shares and self._engine is not None:
                await self._engine.sleep()
            update = await self._update(examples_of(chosen))
        adapter = progress.adapter
        if update.skipped is None:
            with clock.of("swap"):
                adapter = await self._swap(iteration)
        if self._due(iteration, last):
            with clock.of("evaluation"):
                await self._evaluate(iteration)
        new = [group for group in harvest.groups if self._source.is_new(group)]
        change = after_iteration(gating, new, iteration, self._settings, self._run.folder)
        if change.gate is not None:
            gates.save(change.gate, self._run.folder / GATE_FILE)
        row = iteration_row(iteration, harvest, chosen, update, change.seen, clock, timed.seconds if timed else 0.0)
        self._counted_until = time.perf_counter()
        self._log.iteration(row)
        self._screen.iteration(row)
        for line in change.lines:
            self._screen.say(line)
        self._save(
            Progress(
                iteration=iteration,
                gating=change.gating,
                adapter=adapter,
                streaks=updated_streaks(progress.streaks, harvest.groups),
                fresh=harvest.fresh,
            )
        )

    async def _harvest(self, iteration: int, timed: TimedWatcher | None) -> Harvest:
        """The groups of an iteration: those of its tasks, and fresh ones for those that teach nothing."""
        settings, progress = self._settings, self.progress
        tasks: Sequence[Task] = self._source.tasks(iteration)
        places, skipped, fresh = len(tasks), 0, progress.fresh
        if settings.skip_prompts:
            prompts = pass_over(tasks, self._source.fresh(fresh), progress.streaks, settings.exploration, settings.seed)
            tasks, skipped, fresh = prompts.tasks, prompts.skipped, fresh + prompts.drawn
        audit = progress.gating.audit(settings)
        groups: list[Group] = []
        asked = failed = restored = refilled = 0
        while tasks:
            here = asked
            asked += len(tasks)
            rolled = await self._source.roll(
                tasks,
                iteration - 1,
                watcher_of(progress.gating, timed),
                audit.review if audit else None,
                partial(self._count, iteration, here, asked),
            )
            groups += rolled.groups
            failed, restored = failed + rolled.failed, restored + rolled.restored
            if not groups:
                raise SelectiveRolloutError(
                    f"{self._run.folder}: every group of iteration {iteration} failed ({rolled.message}); "
                    "see to it, then go on with --resume"
                )
            wanted = min(missing(groups, places) - failed, settings.refill - refilled)
            more = self._more(wanted, fresh)
            tasks, skipped, fresh = more.tasks, skipped + more.skipped, fresh + more.drawn
            refilled += len(tasks)
        return Harvest(groups, failed, restored, skipped, refilled, fresh)

    def _more(self, wanted: int, taken: int) -> Prompts:
        """Fresh tasks, after the first `taken`, for so many places; fewer where prompts are passed over."""
        settings, following = self._settings, self._source.fresh(taken)
        drawn = tuple(next(following) for _ in range(wanted))
        if not settings.skip_prompts:
            return Prompts(drawn, 0, len(drawn))
        kept = pass_over(drawn, following, self.progress.streaks, settings.exploration, settings.seed)
        return replace(kept, drawn=len(drawn) + kept.drawn)

    async def _update(self, examples: Sequence[Example]) -> Update:
        """The update, in a thread: Ctrl-C need not wait for its end, but has the learner closed, which gives it up."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._learner.update, examples)

    def _count(self, iteration: int, before: int, asked: int, done: int) -> None:
        self._screen.show(iteration, before + done, asked)

    async def _swap(self, iteration: int) -> str:
        """Save the adapter and have the engine sample from it; returns its folder, in the run."""
        adapter = f"{ADAPTERS}/{iteration:06d}"
        folder = self._run.folder / adapter
        folder.parent.mkdir(exist_ok=True)
        self._learner.save_adapter(folder)
        self._learner.sleep()
        if self._engine is not None:
            await self._engine.set_adapter(replace(self._policy, adapter=folder, version=iteration))
        return adapter

    def _due(self, iteration: int, last: bool) -> bool:
        """Whether an evaluation comes after this iteration: every so many, and after the last."""
        every = self._settings.eval_every
        return self._evaluator is not None and bool(every) and (iteration % (every or 1) == 0 or last)

    async def _evaluate(self, iteration: int) -> None:
        if self._evaluator is None:
            return
        self._learner.sleep()
        row = evaluation_row(iteration, await self._evaluator.play(iteration))
        self._log.evaluation(row)
        self._screen.evaluation(row)

    def _save(self, progress: Progress) -> None:
        try:
            checkpoint.save(self._run.folder, progress, self._learner)
        except OSError as error:
            raise SelectiveRolloutError(
                f"{self._run.folder}: cannot be written to ({error.strerror}); what was done is safe: "
                f"go on with sr train {self._run.folder} --resume"
            ) from error
        self.progress = progress
        newest = None if progress.adapter is None else Path(progress.adapter).name
        prune(self._run.folder, worth_keeping(self._run.folder, newest, self._log.rows(EVALUATIONS)))


def initial(gating: Gating, gate: Gate | None, run: Path) -> Progress:
    """Where a new run begins; it keeps a copy of the gate that it was given."""
    if gate is not None:
        gates.save(gate, run / GATE_FILE)
    return Progress(0, gating)


def worth_keeping(run: Path, newest: str | None, evaluations: Sequence[Row]) -> set[str]:
    """The names of the adapters to keep: the newest, and those that were evaluated.

    An evaluation after an iteration without an update is of an earlier iteration's adapter. What is there beyond the
    newest is left over from an iteration that was interrupted, and done again without an update.
    """
    folder = run / ADAPTERS
    there = [path.name for path in folder.iterdir() if path.name <= (newest or "")] if folder.is_dir() else []
    evaluated = [f"{row['iteration']:06d}" for row in evaluations]
    return {max(before) for at in (newest or "", *evaluated) if (before := [name for name in there if name <= at])}


def prune(run: Path, kept: set[str]) -> None:
    """Delete the adapters that are not among those kept (by name); without this they would fill the disk."""
    folder = run / ADAPTERS
    for adapter in folder.iterdir() if folder.is_dir() else ():
        if adapter.name not in kept:
            shutil.rmtree(adapter)
