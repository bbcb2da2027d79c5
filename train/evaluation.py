"""How good the policy is on games that it does not learn from: greedy, one trajectory a game, no gate."""

import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from calibrate.intervals import UNKNOWN, Interval, proportion
from collect.engine import Engine
from collect.environment import Environments
from collect.errors import InputError
from collect.games import Game
from collect.prompt import Prompt
from collect.rollout import Failure, Rollout, Settings, Task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What became of the games: `won` says for each game that was played to its end, by id and sorted, whether it was
    won. `steps` and `tokens` are of all of those; `failed` games were given up after errors.
    """

    won: dict[str, bool]
    failed: int
    steps: int
    tokens: int
    seconds: float

    @property
    def success(self) -> Interval:
        """Share of games won, with its exact (Clopper-Pearson) 95 % interval; NaN without a game."""
        return proportion(sum(self.won.values()), len(self.won)) if self.won else UNKNOWN


class Evaluator:
    """Plays the same games whenever it is asked, the same for every seed and arm."""

    def __init__(
        self,
        games: Sequence[Game],
        count: int,
        engine: Engine,
        environments: Environments,
        prompt: Prompt,
        rollout: Settings,
    ) -> None:
        """`rollout` says how training rolls out; of `games`, `count` are taken, or all if they are fewer."""
        order = sorted(games, key=lambda game: game.id)
        random.Random(0).shuffle(order)
        self._tasks = [Task(game, 0) for game in sorted(order[:count], key=lambda game: game.id)]
        self._engine = engine
        self._environments = environments
        self._prompt = prompt
        # As many trajectories in flight as when training, one a game.
        self._rollout = replace(
            rollout,
            group_size=1,
            sampling=replace(rollout.sampling, temperature=0.0),
            concurrency=rollout.concurrency * rollout.group_size,
        )

    async def play(self, version: int) -> Evaluation:
        """Play every game once."""
        begun = time.perf_counter()
        settings = replace(self._rollout, policy_version=version)
        rollout = Rollout(self._engine, self._environments, self._prompt, settings)
        won, steps, tokens, failed = {}, 0, 0, 0
        async for outcome in rollout.run(self._tasks):
            if isinstance(outcome, Failure):
                failed += outcome.final
                continue
            (trajectory,) = outcome.trajectories
            won[outcome.game.id] = trajectory.won
            steps += len(trajectory.steps)
            tokens += len(trajectory.logprobs)
        return Evaluation(dict(sorted(won.items())), failed, steps, tokens, time.perf_counter() - begun)


def check_held_out(games: Sequence[Game], training: Collection[str]) -> None:
    """Raise `InputError` where one of the games is among those, named by their ids, that are learned from."""
    shared = [game.path for game in games if game.id in training]
    if shared:
        raise InputError(f"--eval-on: {min(shared)} is learned from too; name other games to judge on")
