"""What a group's rewards say, and what cutting groups saves and costs: pure functions on arrays.

N groups of G rewards each; K is the step at which a group is cut, the horizon the most steps a trajectory may take.
Formulas follow "Selective Rollout: Mid-Trajectory Termination for Multi-Sample Agent RL", except where a docstring says
otherwise.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Outcome = Literal["all_fail", "mixed", "all_succeed", "uniform"]
OUTCOMES: tuple[Outcome, ...] = ("all_fail", "mixed", "all_succeed", "uniform")

REWARD_TOLERANCE = 1e-8
ADVANTAGE_EPSILON = 1e-8

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def zero_variance(rewards: Floats, tolerance: float = REWARD_TOLERANCE) -> Bools:
    """Which groups teach nothing: largest minus smallest reward at most `tolerance`. (N, G) -> (N,)."""
    return np.asarray(np.ptp(rewards, axis=-1) <= tolerance)


def outcomes(rewards: Floats, tolerance: float = REWARD_TOLERANCE) -> NDArray[np.str_]:
    """Name each group's outcome. (N, G) -> (N,) of `OUTCOMES`.

    `mixed` groups vary. Those that do not are `all_fail` at reward 0, `all_succeed` at reward 1 (both within the
    tolerance, and nearer than to the other) and `uniform` at any other reward, which only real-valued rewards reach.
    """
    from_fail, from_success = np.abs(rewards.mean(axis=-1)), np.abs(rewards.mean(axis=-1) - 1)
    kinds = [
        ~zero_variance(rewards, tolerance),
        (from_fail <= tolerance) & (from_fail < from_success),
        (from_success <= tolerance) & (from_success < from_fail),
    ]
    return np.select(kinds, ["mixed", "all_fail", "all_succeed"], "uniform")


def advantages(rewards: Floats) -> Floats:
    """Group-relative advantage A_i = (r_i - mean) / (std + 1e-8), population std. (N, G) -> (N, G)."""
    centred = rewards - rewards.mean(axis=-1, keepdims=True)
    return np.asarray(centred / (rewards.std(axis=-1, keepdims=True) + ADVANTAGE_EPSILON))


def advantage_l2_kept(reward_variance: Floats, kept: Floats | Bools) -> float:
    """‖A of kept groups‖ / ‖A of all groups‖, in [0, 1]; 1 when no group has an advantage. `kept` is 0 or 1, (N,).

    Takes each group's population variance v of rewards, since its advantages' sum of squares is
    G · v / (sqrt(v) + 1e-8)²; G must be the same for all groups, and then cancels.
    """
    deviation = np.sqrt(reward_variance)
    energy = (deviation / (deviation + ADVANTAGE_EPSILON)) ** 2  # nothing of this overflows, as the variance itself may
    total = energy.sum()
    # The two sums add in another order, and so may differ by their rounding.
    return min(1.0, float(np.sqrt(energy @ kept / total))) if total > 0 else 1.0


def net_saving(saving: Floats | float, dropped: Floats | float) -> Floats:
    """Fall in the cost per informative group, 1 - (1 - S) / (1 - F); negative where a gate costs more than it saves.

    `saving` S is the share of the cost that all cuts save, `dropped` F the share of informative (not zero-variance)
    groups that they drop; both in [0, 1]. Minus infinity where every informative group is dropped, NaN where there is
    none (a `dropped` of NaN).
    """
    kept = 1 - np.asarray(dropped, np.float64)
    return np.where(kept <= 0, -np.inf, 1 - (1 - np.asarray(saving)) / np.where(kept <= 0, 1, kept))


def break_even_precision(saving_per_cut: float, zero_variance_rate: float) -> float:
    """Precision below which a gate costs more than it saves, 1 - s · (1 - z).

    `saving_per_cut` s is what a cut saves on average over what a group costs on average; z is the share of
    zero-variance groups. Follows from net saving > 0 iff S > F.
    """
    return 1 - saving_per_cut * (1 - zero_variance_rate)
