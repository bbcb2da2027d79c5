"""How a gate transfers to smaller groups: the same rule on sub-sampled trajectories, with labels recomputed."""

from pathlib import Path

from calibrate.convention import Convention
from calibrate.fit import apply
from calibrate.rollouts import read_rollouts
from calibrate.rules import Rule
from calibrate.tally import Tally


def transfer(run: Path, rule: Rule, group_size: int, reward_tolerance: float) -> list[tuple[int, Tally]]:
    """What the rule does at group size G/2, G/4, … down to 2, each on that many trajectories of every group of a run.

    The threshold stays; scores, outcomes and costs are those of the smaller groups. Which trajectories stay is drawn by
    a hash of the group's id: one draw, which the intervals allow for.
    """
    sizes = []
    while (group_size := group_size // 2) >= 2:
        sizes.append(group_size)
    samples = ((size, read_rollouts(run, reward_tolerance, keep=size)) for size in sizes)
    return [(size, apply(sample, rule, Convention.ELIGIBLE)) for size, sample in samples]
