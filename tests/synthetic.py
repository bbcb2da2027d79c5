"""Synthetic groups for tests that need rollouts but no game and no model."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from collect.games import TASK_TYPES, Game
from collect.trajectory import Decision, Ending, Group, Step, Trajectory

COMMANDS = ("look", "inventory", "go to desk 1", "go to shelf 2", "open drawer 1", "take mug 1 from desk 1")


def make_game(number: int = 0, split: str = "train") -> Game:
    """A game that exists by name only; another number, another task."""
    task_type = TASK_TYPES[number % len(TASK_TYPES)]
    name = f"{task_type}-Mug-None-Shelf-{number}/trial_T{number:06d}"
    return Game(id=name, path=Path("games") / split / name / "game.tw-pddl", split=split, task_type=task_type)


def make_trajectory(rng: random.Random, actions: Sequence[str], *, won: bool, ending: Ending = "horizon") -> Trajectory:
    """A trajectory that sends `actions`, with made-up observations, tokens and log-probabilities that fit together."""
    steps: list[Step] = []
    token_ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for index, action in enumerate(actions):
        read, sampled = rng.randint(1, 5), rng.randint(1, 4)
        token_ids += [rng.randrange(49_152) for _ in range(read + sampled)]
        mask += [False] * read + [True] * sampled
        here = [-rng.random() for _ in range(sampled)]
        logprobs += here
        last = index == len(actions) - 1
        steps.append(
            Step(
                observation=f"You see mug {rng.randint(1, 9)}.",
                admissible_commands=COMMANDS,
                reply=action,
                action=action,
                match="exact" if action in COMMANDS else "none",
                reward=1.0 if won and last else 0.0,
                prompt_tokens=len(token_ids) - sampled,
                reply_tokens=sampled,
                reply_logprob=sum(here),
                engine_seconds=rng.random(),
                environment_seconds=rng.random(),
            )
        )
    return Trajectory(
        reward=1.0 if won else 0.0,
        won=won,
        ending="won" if won else ending,
        steps=tuple(steps),
        token_ids=tuple(token_ids),
        policy_mask=tuple(mask),
        logprobs=tuple(logprobs),
        final_observation="Nothing happens.",
    )


def make_group(
    rng: random.Random,
    group_size: int = 4,
    horizon: int = 6,
    *,
    number: int = 0,
    visit: int = 0,
    split: str = "train",
    actions: Sequence[Sequence[str]] | None = None,
    won: Sequence[bool] | None = None,
    decision: Decision | None = None,
) -> Group:
    """A group of `group_size` trajectories; `number` chooses its game.

    `actions` and `won` fix what each trajectory did and whether it won. Else they are drawn: a winner stops anywhere up
    to the horizon, a loser takes all its steps.
    """
    if won is None:
        won = [rng.random() < 0.5 for _ in range(group_size)]
    if actions is None:
        lengths = [rng.randint(1, horizon) if w else horizon for w in won]
        actions = [[rng.choice(COMMANDS) for _ in range(length)] for length in lengths]
    return Group(
        game=make_game(number, split),
        visit=visit,
        horizon=horizon,
        policy_version=0,
        seed=rng.getrandbits(62),
        started=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        seconds=rng.random() * 100,
        trajectories=tuple(make_trajectory(rng, a, won=w) for a, w in zip(actions, won, strict=True)),
        decision=decision,
    )
