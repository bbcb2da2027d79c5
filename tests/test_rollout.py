"""The rollout loop on the real engine: real games, the real small model, injected faults."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from collect.engine import Completion, Engine, Request, Sampling, open_engine
from collect.environment import open_environments
from collect.errors import EngineFault
from collect.games import Game
from collect.policy import Policy, load_tokenizer
from collect.prompt import Prompt
from collect.rollout import Failure, Rollout, Settings, Task
from collect.trajectory import Decision, Group, Step, Trajectory
from collect.watch import Watcher

SETTINGS = Settings(group_size=2, horizon=4, sampling=Sampling(0.7), concurrency=1, seed=7)


@pytest.fixture(scope="module")
def engine(small_policy: Policy) -> Iterator[Engine]:
    engine = open_engine("transformers", small_policy, deterministic=True)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def prompt(small_policy: Policy) -> Prompt:
    return Prompt(load_tokenizer(small_policy), "act", show_commands=False)


class Faulty:
    """The real engine, but `fails` says which requests it fails on, and `context` how much it can hold."""

    def __init__(self, engine: Engine, fails: Any = lambda number: False, context: int | None = None) -> None:
        self._engine = engine
        self._fails = fails
        self.context = context or engine.context
        self.requests: list[Request] = []
        self.in_flight: list[int] = []  # as every request came
        self._running = 0
        self.released: list[str] = []

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        if self._fails(len(self.requests)):
            raise EngineFault("out of memory")
        self._running += 1
        self.in_flight.append(self._running)
        try:
            return await self._engine.generate(request)
        finally:
            self._running -= 1

    def abort(self, trajectory: str) -> None:
        self._engine.abort(trajectory)

    def release(self, trajectory: str) -> None:
        self.released.append(trajectory)
        self._engine.release(trajectory)

    async def set_adapter(self, policy: Policy) -> None:
        await self._engine.set_adapter(policy)

    async def sleep(self) -> None:
        await self._engine.sleep()

    def close(self) -> None: ...


def roll_out(
    engine: Engine, prompt: Prompt, games: list[Game], settings: Settings = SETTINGS, watcher: Watcher | None = None
) -> list[Group | Failure]:
    async def gather() -> list[Group | Failure]:
        rollout = Rollout(engine, open_environments("compiled", print), prompt, settings, watcher)
        return [outcome async for outcome in rollout.run([Task(game, 0) for game in games])]

    return asyncio.run(gather())


def sampled(outcomes: list[Group | Failure]) -> dict[str, tuple[Trajectory, ...]]:
    """Trajectories by group, without what a clock measured."""
    groups = [outcome for outcome in outcomes if isinstance(outcome, Group)]
    assert len(groups) == len(outcomes)
    return {
        group.id: tuple(
            replace(t, steps=tuple(replace(s, engine_seconds=0, environment_seconds=0) for s in t.steps))
            for t in group.trajectories
        )
        for group in groups
    }


def test_deterministic_rollouts_are_the_same_at_any_concurrency(
    engine: Engine, prompt: Prompt, six_games: list[Game]
) -> None:
    games = six_games[:4]
    alone = sampled(roll_out(engine, prompt, games))
    together = sampled(roll_out(engine, prompt, games[::-1], replace(SETTINGS, concurrency=8)))
    assert alone == together
    assert len(alone) == 4


def test_another_seed_gives_other_rollouts(engine: Engine, prompt: Prompt, six_games: list[Game]) -> None:
    hot = replace(SETTINGS, sampling=Sampling(1.5))
    first = sampled(roll_out(engine, prompt, six_games[:1], hot))
    assert first != sampled(roll_out(engine, prompt, six_games[:1], replace(hot, seed=8)))
    (trajectories,) = first.values()
    assert trajectories[0] != trajectories[1]


class EverySecond:
    """Cuts every second group at step 2."""

    steps = (2,)

    def __init__(self) -> None:
        self._asked = 0

    def decide(self, prefixes: Sequence[Sequence[Step]], *, eligible: bool, step: int) -> Decision:
        self._asked += 1
        return Decision(step, 0.0, 0.5, True, enforced=eligible and self._asked % 2 == 0)


@pytest.mark.parametrize("watcher", [None, EverySecond()], ids=["unwatched", "watched"])
def test_as_many_trajectories_are_in_flight_as_may_be_and_never_more(
    engine: Engine, prompt: Prompt, six_games: list[Game], watcher: Watcher | None
) -> None:
    counted = Faulty(engine)
    outcomes = roll_out(counted, prompt, six_games[:4], replace(SETTINGS, horizon=3, concurrency=2), watcher)
    cut = [outcome.decision is not None and outcome.decision.enforced for outcome in outcomes]  # type: ignore[union-attr]
    assert sum(cut) == (2 if watcher else 0)
    assert max(counted.in_flight) == 4
    if watcher is None:
        # The first four begin together; from then on a slot that is left is taken at once, until none is left to begin.
        begun = [index for index, request in enumerate(counted.requests) if request.trajectory.endswith("/1")]
        assert min(counted.in_flight[3 : begun[-1]]) >= 3


def test_logged_token_ids_are_those_that_the_engine_saw_and_sampled(
    engine: Engine, prompt: Prompt, six_games: list[Game], small_policy: Policy
) -> None:
    watched = Faulty(engine)
    (group,) = roll_out(watched, prompt, six_games[:1])
    assert isinstance(group, Group)
    tokenizer = load_tokenizer(small_policy)
    for index, trajectory in enumerate(group.trajectories):
        requests = [r for r in watched.requests if r.trajectory == f"{group.id}/{index}"]
        assert len(requests) == len(trajectory.steps) > 0
        for request, step in zip(requests, trajectory.steps, strict=True):
            seen = len(request.prompt)
            assert trajectory.token_ids[:seen] == request.prompt
            assert step.prompt_tokens == seen
            assert trajectory.policy_mask[seen : seen + step.reply_tokens] == (True,) * step.reply_tokens
            reply = trajectory.token_ids[seen : seen + step.reply_tokens]
            assert tokenizer.decode(reply, skip_special_tokens=True).strip() == step.reply
        assert sum(trajectory.policy_mask) == len(trajectory.logprobs)
        assert trajectory.policy_mask[-1], "nothing is logged that the policy never answered"


def test_logged_log_probabilities_are_those_a_trainer_computes(
    engine: Engine, prompt: Prompt, six_games: list[Game], small_policy: Policy
) -> None:
    import torch

    from collect.policy import load_model

    (group,) = roll_out(engine, prompt, six_games[1:2])
    assert isinstance(group, Group)
    model = load_model(small_policy, torch.float32, "cpu", attention="sdpa")
    for trajectory in group.trajectories:
        with torch.inference_mode():
            logits = model(torch.tensor([trajectory.token_ids])).logits[0]
        logprobs = torch.log_softmax(logits[:-1] / SETTINGS.sampling.temperature, dim=-1)
        expected = [
            float(logprobs[i - 1, token])
            for i, (token, policy) in enumerate(zip(trajectory.token_ids, trajectory.policy_mask, strict=True))
            if policy
        ]
        assert trajectory.logprobs == pytest.approx(expected, abs=2e-3)


def test_a_failed_request_fails_the_attempt_and_the_group_is_tried_again(
    engine: Engine, prompt: Prompt, six_games: list[Game]
) -> None:
    faulty = Faulty(engine, fails=lambda number: number == 3)
    outcomes = roll_out(faulty, prompt, six_games[:1])
    assert isinstance(outcomes[0], Failure)
    assert (outcomes[0].boundary, outcomes[0].message, outcomes[0].final) == ("engine", "out of memory", False)
    assert sampled(outcomes[1:]) == sampled(roll_out(engine, prompt, six_games[:1]))
    assert set(faulty.released) == {request.trajectory for request in faulty.requests}


def test_a_group_that_fails_as_the_rollout_is_cancelled_is_not_tried_again(
    engine: Engine, prompt: Prompt, six_games: list[Game]
) -> None:
    async def main() -> Faulty:
        async def consume() -> None:
            async for _ in rollout.run([Task(six_games[0], 0)]):
                pass

        def cancel_and_fail(number: int) -> bool:
            consumer.cancel()
            return True

        faulty = Faulty(engine, fails=cancel_and_fail)
        rollout = Rollout(faulty, open_environments("compiled", print), prompt, SETTINGS)
        consumer = asyncio.create_task(consume())
        with pytest.raises(asyncio.CancelledError):
            await consumer
        return faulty

    assert len(asyncio.run(main()).requests) <= SETTINGS.group_size


def test_a_group_that_keeps_failing_is_left_and_the_others_go_on(
    engine: Engine, prompt: Prompt, six_games: list[Game], tmp_path: Any
) -> None:
    broken = tmp_path / "game.tw-pddl"
    broken.write_text("{}")
    games = [replace(six_games[0], path=broken), six_games[1]]
    outcomes = roll_out(engine, prompt, games, replace(SETTINGS, concurrency=2, horizon=1))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert [(failure.boundary, failure.final) for failure in failures] == [
        ("environment", False),
        ("environment", True),
    ]
    assert [outcome.game for outcome in outcomes if isinstance(outcome, Group)] == [six_games[1]]


def test_a_trajectory_that_fills_the_context_ends_there_and_says_so(
    engine: Engine, prompt: Prompt, six_games: list[Game]
) -> None:
    (whole,) = roll_out(engine, prompt, six_games[:1])
    assert isinstance(whole, Group)
    room = whole.trajectories[0].steps[2].prompt_tokens - 1 + SETTINGS.sampling.max_tokens
    (short,) = roll_out(Faulty(engine, context=room), prompt, six_games[:1])
    assert isinstance(short, Group)
    trajectory = short.trajectories[0]
    assert trajectory.ending == "context"
    assert trajectory.actions == whole.trajectories[0].actions[:2]
    assert len(trajectory.token_ids) == len(trajectory.policy_mask) <= room
    assert trajectory.policy_mask[-1]


def test_a_reply_of_nothing_but_a_stop_token_is_a_step(engine: Engine, prompt: Prompt, six_games: list[Game]) -> None:
    class Silent(Faulty):
        async def generate(self, request: Request) -> Completion:
            return Completion((next(iter(prompt.stop)),), (-0.1,), "stop")

    (group,) = roll_out(Silent(engine), prompt, six_games[:1])
    assert isinstance(group, Group)
    for trajectory in group.trajectories:
        assert trajectory.actions == ("",) * SETTINGS.horizon
        assert [step.match for step in trajectory.steps] == ["none"] * SETTINGS.horizon
        assert trajectory.final_observation == "Nothing happens."
        assert (trajectory.reward, trajectory.ending) == (0.0, "horizon")


def test_the_walkthrough_said_by_the_policy_wins(
    engine: Engine, prompt: Prompt, six_games: list[Game], small_policy: Policy
) -> None:
    """The model is real everywhere else; here its replies are given, to see a win logged."""
    from collect.games import read_game_file

    walkthrough = read_game_file(six_games[0].path).walkthrough or ()
    assert walkthrough
    tokenizer = load_tokenizer(small_policy)

    class Guided(Faulty):
        async def generate(self, request: Request) -> Completion:
            self.requests.append(request)
            said = sum(r.trajectory == request.trajectory for r in self.requests) - 1
            ids = (*tokenizer(walkthrough[said], add_special_tokens=False)["input_ids"], *prompt.stop)
            return Completion(ids, (0.0,) * len(ids), "stop")

    (group,) = roll_out(Guided(engine), prompt, six_games[:1], replace(SETTINGS, horizon=len(walkthrough) + 5))
    assert isinstance(group, Group)
    for trajectory in group.trajectories:
        assert (trajectory.reward, trajectory.won, trajectory.ending) == (1.0, True, "won")
        assert trajectory.actions == walkthrough
