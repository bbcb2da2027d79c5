"""What an iteration's groups cost, and what was saved by what was not rolled out or not learned from."""

from collections.abc import Iterable, Sequence

from calibrate.intervals import UNKNOWN, Interval, proportion
from collect.trajectory import Group, Trajectory
from train.composition import was_cut


def tokens_sampled(groups: Iterable[Group]) -> int:
    """Tokens that the policy sampled in these groups."""
    return sum(len(trajectory.logprobs) for group in groups for trajectory in group.trajectories)


def steps_taken(groups: Iterable[Group]) -> int:
    """Steps of all trajectories of these groups."""
    return sum(len(trajectory.steps) for group in groups for trajectory in group.trajectories)


def tokens_skipped_by_gate(groups: Sequence[Group]) -> float:
    """Estimate of what cut trajectories would have sampled after their cut at K.

    Each stands for as many tokens as the uncut trajectories of these groups that went past K sampled there on average;
    without one, for as many a step as it sampled before K, up to the horizon.
    """
    uncut = [trajectory for group in groups if not was_cut(group) for trajectory in group.trajectories]
    skipped = 0.0
    for group in groups:
        if not was_cut(group):
            continue
        assert group.decision is not None
        step = group.decision.step
        after = [_tokens_after(trajectory, step) for trajectory in uncut if len(trajectory.steps) > step]
        for trajectory in group.trajectories:
            if trajectory.ending == "cut":
                rest = len(trajectory.logprobs) / step * (group.horizon - step)
                skipped += sum(after) / len(after) if after else rest
    return skipped


def tokens_skipped_by_prompts(groups: Sequence[Group], prompts: int) -> float:
    """Estimate of what as many further groups would have sampled: the mean of the uncut ones each, 0 without one."""
    uncut = [group for group in groups if not was_cut(group)]
    return prompts * tokens_sampled(uncut) / len(uncut) if uncut else 0.0


def success(groups: Sequence[Group]) -> Interval:
    """Share of trajectories won in uncut groups, with an exact 95 % interval; NaN without one.

    The trajectories of a group play one game: each group counts as one draw, which is the widest that their dependence
    can make the interval.
    """
    shares = [sum(t.won for t in g.trajectories) / len(g.trajectories) for g in groups if not was_cut(g)]
    return proportion(sum(shares), len(shares)) if shares else UNKNOWN


def mean_reward(groups: Sequence[Group]) -> float | None:
    """Mean reward of the trajectories of uncut groups; None without one."""
    rewards = [t.reward for group in groups if not was_cut(group) for t in group.trajectories]
    return sum(rewards) / len(rewards) if rewards else None


def _tokens_after(trajectory: Trajectory, step: int) -> int:
    return sum(s.reply_tokens for s in trajectory.steps[step:])
