"""What one update learns from: trajectories with an advantage each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibrate import outcomes
from collect.trajectory import Group

Normalisation = Literal["trajectory", "token", "constant"]


@dataclass(frozen=True, slots=True)
class Example:
    """One trajectory to learn from.

    `token_ids`, `policy_mask` and `logprobs` are those of `collect.trajectory.Trajectory`: every token of the
    conversation as the policy saw it, which of them it sampled, and with what log-probability. A trajectory of which no
    token was sampled is an example too: it counts in the means and has no gradient.

    Raises:
        ValueError: the three do not fit together, or a number is not finite.
    """

    group: str
    token_ids: tuple[int, ...]
    policy_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantage: float

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.policy_mask) or sum(self.policy_mask) != len(self.logprobs):
            raise ValueError(f"an example of group {self.group}: its tokens, mask and log-probabilities do not fit")
        if self.policy_mask and self.policy_mask[0]:
            raise ValueError(f"an example of group {self.group}: nothing comes before its first sampled token")
        if not np.isfinite([self.advantage, *self.logprobs]).all():
            raise ValueError(f"an example of group {self.group}: its advantage or a log-probability is not finite")

    @property
    def teaches(self) -> bool:
        """Whether it has a gradient: an advantage, and sampled tokens to give it to."""
        return self.advantage != 0 and bool(self.logprobs)


def examples_of(groups: Sequence[Group], *, drop_zero_variance: bool = False) -> list[Example]:
    """The trajectories of groups that ran to their ends, in order, each with its group-relative advantage.

    A group that was cut is left out: its rewards are truncated. So is, with `drop_zero_variance`, one whose rewards are
    all equal; else its trajectories come with advantage 0.

    Args:
        groups: live groups, or those of a run on disk (`train.frozen`).
        drop_zero_variance: leave out groups without an advantage, instead of letting them dilute the mean.
    """
    examples: list[Example] = []
    for group in groups:
        if group.decision is not None and group.decision.enforced:
            continue
        advantages = group_advantages([trajectory.reward for trajectory in group.trajectories])
        if drop_zero_variance and not any(advantages):
            continue
        examples += [
            Example(group.id, trajectory.token_ids, trajectory.policy_mask, trajectory.logprobs, advantage)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        ]
    return examples


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """A_i = (r_i - mean) / (std + 1e-8), population std; exactly 0 where all rewards are equal within 1e-8.

    Without that exception the rounding of a mean, divided by 1e-8, would make an advantage out of nothing.
    """
    values = np.asarray(rewards, np.float64)
    if outcomes.zero_variance(values):
        return [0.0] * len(values)
    advantages: list[float] = outcomes.advantages(values).tolist()
    return advantages


def denominator(examples: Sequence[Example], normalisation: Normalisation, constant: float | None = None) -> float:
    """What the sum over a batch's sampled tokens is divided by: its trajectories, its sampled tokens, or a constant.

    Never 0. Trajectories without an advantage count: that is what dilutes the mean.
    """
    match normalisation:
        case "trajectory":
            return max(len(examples), 1)
        case "token":
            return max(sum(len(example.logprobs) for example in examples), 1)
        case "constant":
            assert constant is not None
            return constant
