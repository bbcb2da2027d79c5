"""The rollout loop: many groups in flight, every trajectory at its own pace.

A trajectory asks the engine for its next reply as soon as the game has answered, and a slot that it leaves goes to the
next trajectory, of whatever group (`collect.slots`). Groups are opened a few ahead of that, in their order: so the
engine has as many requests as it may, but for those that are waiting for their game. A failed game or engine request
ends its group, never the loop: the group is tried again, and after `ATTEMPTS` failures it is left to a later session.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from collect.engine import Completion, Engine, Request, Sampling, derive_seed
from collect.environment import Environments, GroupEnvironment, Observation
from collect.errors import EngineFault, EnvironmentFault
from collect.games import Game
from collect.prompt import Prompt, match_command
from collect.slots import Slot, Slots
from collect.trajectory import Decision, Ending, Group, Step, Trajectory, group_id
from collect.watch import Watch, Watcher

ATTEMPTS = 2
AHEAD = 4  # groups that are open before all their trajectories have a slot: loading a game may take a while
MOST_OPEN = 3  # groups open for each group's worth of slots: a few stragglers must not leave slots without work
Boundary = Literal["environment", "engine"]
Audit = Callable[[str, Decision], Decision]  # from a group's id and the watcher's decision to the one that holds


@dataclass(frozen=True, slots=True)
class Task:
    """One group to roll out: the `visit`-th visit to a game."""

    game: Game
    visit: int

    @property
    def group_id(self) -> str:
        """The id that its group will have."""
        return group_id(self.game, self.visit)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt at a group: which boundary failed, what it said, and whether it will be tried again."""

    task: Task
    boundary: Boundary
    message: str
    final: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """How groups are rolled out: `group_size` ≥ 1 trajectories of at most `horizon` ≥ 1 steps each.

    `concurrency` ≥ 1 says how many groups' worth of trajectories are in flight, `concurrency * group_size` of them; it
    changes speed, not what is sampled (see `collect.engine`).
    """

    group_size: int
    horizon: int
    sampling: Sampling
    concurrency: int
    seed: int
    policy_version: int = 0


class Rollout:
    """Rolls out groups with one engine and one prompt style, under a watcher if there is one.

    `audit` has the last word on what the watcher decides. `steps` and `tokens` count what was sampled so far.
    """

    def __init__(
        self,
        engine: Engine,
        environments: Environments,
        prompt: Prompt,
        settings: Settings,
        watcher: Watcher | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._engine = engine
        self._watcher = watcher
        self._audit = audit
        self._environments = environments
        self._prompt = prompt
        self._settings = settings
        self.steps = 0
        self.tokens = 0

    async def run(self, tasks: Iterable[Task]) -> AsyncIterator[Group | Failure]:
        """Roll out every task; yields groups as they finish, and every failed attempt. Order is not promised."""
        outcomes: asyncio.Queue[Group | Failure | None] = asyncio.Queue()
        rolling = asyncio.create_task(self._roll(tasks, outcomes))
        rolling.add_done_callback(lambda _: outcomes.put_nowait(None))
        try:
            while (outcome := await outcomes.get()) is not None:
                yield outcome
            await rolling
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # what else failed at once says no more
        finally:
            rolling.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await rolling

    async def _roll(self, tasks: Iterable[Task], outcomes: "asyncio.Queue[Group | Failure | None]") -> None:
        rolling, concurrency = asyncio.current_task(), self._settings.concurrency
        slots = Slots(concurrency * self._settings.group_size)
        ahead, most = asyncio.Semaphore(AHEAD), asyncio.Semaphore(MOST_OPEN * concurrency)
        async with asyncio.TaskGroup() as attempts:
            for order, task in enumerate(tasks):
                await most.acquire()
                await ahead.acquire()
                opening = _Opening(task, order, slots, self._settings.group_size, rolling, ahead.release)
                attempts.create_task(self._attempt(opening, outcomes)).add_done_callback(lambda _: most.release())

    async def _attempt(self, opening: "_Opening", outcomes: "asyncio.Queue[Group | Failure | None]") -> None:
        for attempt in range(1, ATTEMPTS + 1):
            opening.begin()
            try:
                outcomes.put_nowait(await self._group(opening))
                return
            except* (EnvironmentFault, EngineFault) as faults:
                fault = faults.exceptions[0]
                boundary: Boundary = "engine" if isinstance(fault, EngineFault) else "environment"
                outcomes.put_nowait(Failure(opening.task, boundary, str(fault), final=attempt == ATTEMPTS))
            finally:
                opening.begun()

    async def _group(self, opening: "_Opening") -> Group:
        settings, task = self._settings, opening.task
        seed = derive_seed(settings.seed, task.group_id)
        review = partial(self._audit, task.group_id) if self._audit else None
        watch = Watch(self._watcher, settings.group_size, review)
        opened = self._environments.open(task.game.path, settings.group_size)
        async with opened as environment, asyncio.TaskGroup() as group:
            rollouts = [
                group.create_task(self._trajectory(opening, index, seed, environment, watch))
                for index in range(settings.group_size)
            ]
        return Group(
            game=task.game,
            visit=task.visit,
            horizon=settings.horizon,
            policy_version=settings.policy_version,
            seed=seed,
            started=opening.started,
            seconds=time.perf_counter() - opening.clock,
            trajectories=tuple(rollout.result() for rollout in rollouts),
            decision=watch.decision,
        )

    async def _trajectory(
        self, opening: "_Opening", index: int, seed: int, environment: GroupEnvironment, watch: Watch
    ) -> Trajectory:
        name = f"{opening.task.group_id}/{index}"
        conversation = _Conversation(self._prompt, self._engine.context - self._settings.sampling.max_tokens)
        ending: Ending = "horizon"
        async with opening.slot() as slot:
            try:
                observation = await environment.reset(index)
                for step in range(1, self._settings.horizon + 1):
                    if not conversation.read(observation):
                        ending = "context"
                        break
                    request = Request(
                        trajectory=name,
                        prompt=tuple(conversation.token_ids),
                        stop=self._prompt.stop,
                        seed=derive_seed(seed, index, step),
                        sampling=self._settings.sampling,
                    )
                    observation = await self._step(request, index, conversation, observation, environment)
                    if observation.won:
                        ending = "won"
                        break
                    if step < self._settings.horizon and not await watch.may_go_on(index, conversation.steps, slot):
                        ending = "cut"
                        break
                watch.ended(index, conversation.steps)
            finally:
                self._engine.release(name)
        return conversation.trajectory(ending, observation)

    async def _step(
        self,
        request: Request,
        index: int,
        conversation: "_Conversation",
        observation: Observation,
        environment: GroupEnvironment,
    ) -> Observation:
        """One reply of the policy and one answer of the game; both go into the conversation."""
        asked = time.perf_counter()
        completion = await self._engine.generate(request)
        replied = time.perf_counter()
        reply = self._prompt.text(completion.token_ids)
        action, match = match_command(self._prompt.command(reply), observation.admissible_commands)
        answer = await environment.step(index, action)
        step = Step(
            observation=observation.text,
            admissible_commands=observation.admissible_commands,
            reply=reply,
            action=action,
            match=match,
            reward=answer.reward,
            prompt_tokens=len(request.prompt),
            reply_tokens=len(completion.token_ids),
            reply_logprob=sum(completion.logprobs),
            engine_seconds=replied - asked,
            environment_seconds=time.perf_counter() - replied,
        )
        conversation.say(step, completion)
        self.steps += 1
        self.tokens += len(completion.token_ids)
        return answer


class _Opening:
    """A group that is being rolled out: `started`, at `clock`, when its first trajectory had a slot.

    `all_begun` is called once, when all of its trajectories have had a slot or the group failed.
    """

    started: datetime
    clock: float

    def __init__(
        self,
        task: Task,
        order: int,
        slots: Slots,
        group_size: int,
        rolling: "asyncio.Task[None] | None",
        all_begun: Callable[[], None],
    ) -> None:
        self.task = task
        self._order = order
        self._slots = slots
        self._group_size = group_size
        self._rolling = rolling
        self._all_begun: Callable[[], None] | None = all_begun
        self._had_a_slot = 0

    def begin(self) -> None:
        """Begin anew. Raises CancelledError where the rollout was cancelled: a task that fails then is not told."""
        if self._rolling is not None and self._rolling.cancelling():
            raise asyncio.CancelledError
        self._had_a_slot = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """The slot of one of its trajectories."""
        async with Slot(self._slots, self._order) as slot:
            if self._had_a_slot == 0:
                self.started, self.clock = datetime.now(UTC), time.perf_counter()
            self._had_a_slot += 1
            if self._had_a_slot == self._group_size:
                self.begun()
            yield slot

    def begun(self) -> None:
        """Say that all of its trajectories have had a slot, unless it was said before."""
        if self._all_begun is not None:
            self._all_begun()
            self._all_begun = None


class _Conversation:
    """A trajectory in the making: the exact token ids so far, and which of them the policy sampled."""

    def __init__(self, prompt: Prompt, limit: int) -> None:
        self._prompt = prompt
        self._limit = limit
        self.steps: list[Step] = []
        self._reply: Sequence[int] = ()
        self._logprobs: list[float] = []
        self._mask: list[bool] = []
        self.token_ids: list[int] = []

    def read(self, observation: Observation) -> bool:
        """Append what the game says; False, with nothing appended, when no reply would fit after it."""
        commands = observation.admissible_commands
        if self.steps:
            shown = self._prompt.turn(self._reply, observation.text, commands)
        else:
            shown = self._prompt.opening(observation.text, commands)
        if len(self.token_ids) + len(shown) > self._limit:
            return False
        self._extend(shown, sampled=False)
        return True

    def say(self, step: Step, completion: Completion) -> None:
        """Append a reply of the policy."""
        self.steps.append(step)
        self._reply = completion.token_ids
        self._logprobs += completion.logprobs
        self._extend(completion.token_ids, sampled=True)

    def trajectory(self, ending: Ending, last: Observation) -> Trajectory:
        return Trajectory(
            reward=sum(step.reward for step in self.steps),
            won=last.won,
            ending=ending,
            steps=tuple(self.steps),
            token_ids=tuple(self.token_ids),
            policy_mask=tuple(self._mask),
            logprobs=tuple(self._logprobs),
            final_observation=last.text,
        )

    def _extend(self, token_ids: Sequence[int], sampled: bool) -> None:
        self.token_ids += token_ids
        self._mask += [sampled] * len(token_ids)
