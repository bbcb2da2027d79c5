"""What a rollout is made of: Step, Trajectory, Group, and the Decision that a gate takes on a group.

These are what the rollout loop produces, the store writes, and the trainer learns from. The columns that they become on
disk are described one by one in `collect.schema`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from collect.games import Game

Match = Literal["exact", "folded", "fuzzy", "none"]
Ending = Literal["won", "horizon", "cut", "context"]


@dataclass(frozen=True, slots=True)
class Step:
    """One exchange: the policy reads `observation` and says `reply`; `action` is sent to the game, which answers."""

    observation: str
    admissible_commands: tuple[str, ...]
    reply: str
    action: str
    match: Match
    reward: float
    prompt_tokens: int
    reply_tokens: int
    reply_logprob: float
    engine_seconds: float
    environment_seconds: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout of a game.

    `token_ids` is the whole conversation as the policy saw it; `policy_mask` marks, token by token, what the policy
    sampled; `logprobs` holds the sampling log-probability of each sampled token, so
    `len(token_ids) == len(policy_mask)` and `sum(policy_mask) == len(logprobs)`.
    """

    reward: float
    won: bool
    ending: Ending
    steps: tuple[Step, ...]
    token_ids: tuple[int, ...]
    policy_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    final_observation: str

    @property
    def actions(self) -> tuple[str, ...]:
        """The commands sent to the game, one a step."""
        return tuple(step.action for step in self.steps)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate decided on a group at step `step`: recorded when made, read ever after, never recomputed.

    `flagged` says that the gate would cut the group; `enforced` that the group was cut for it; `audited` that it was
    flagged but let run, to measure the gate.
    """

    step: int
    score: float
    threshold: float
    flagged: bool
    enforced: bool
    audited: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """G rollouts of one visit to one game, without an error among them."""

    game: Game
    visit: int
    horizon: int
    policy_version: int
    seed: int
    started: datetime
    seconds: float
    trajectories: tuple[Trajectory, ...]
    decision: Decision | None = None

    @property
    def id(self) -> str:
        """The group's name in every table of the run."""
        return group_id(self.game, self.visit)


def group_id(game: Game, visit: int) -> str:
    """`<game_id>#<visit>`: unique in a run."""
    return f"{game.id}#{visit}"
