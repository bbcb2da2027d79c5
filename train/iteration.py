"""What happened in an iteration, and its row in the log."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from collect.rows import Row
from collect.trajectory import Group
from train import accounts
from train.audit import flagged_in_time
from train.composition import is_flat, was_cut
from train.gating import Gating
from train.learner import Update
from train.log import number


@dataclass(eq=False)
class Clock:
    """Seconds by phase."""

    begun: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """The time of a block belongs to a phase."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - begun

    def seconds(self) -> dict[str, float]:
        """The columns of an iteration's row."""
        phases = {name: self.phases.get(name, 0.0) for name in ("rollout", "update", "swap", "evaluation")}
        whole = time.perf_counter() - self.begun
        named = {f"seconds_{name}": seconds for name, seconds in phases.items()}
        return named | {"seconds_other": whole - sum(phases.values()), "seconds": whole}


@dataclass(frozen=True, slots=True)
class Harvest:
    """The groups of an iteration, in the order of their tasks, and how they came about; `fresh` tasks were looked at,
    `refilled` groups took the place of others, `skipped` prompts were passed over.
    """

    groups: list[Group]
    failed: int
    restored: int
    skipped: int
    refilled: int
    fresh: int


def iteration_row(
    iteration: int,
    harvest: Harvest,
    chosen: Sequence[Group],
    update: Update,
    gating: Gating,
    clock: Clock,
    seconds_gate: float,
) -> Row:
    """An iteration as a row; `chosen` groups were the batch, `gating` is the gate with what it did in the iteration."""
    return (
        _counts(iteration, gating, harvest, chosen)
        | _learned(update)
        | _audited(gating)
        | clock.seconds()
        | {"seconds_gate": seconds_gate}
    )


def _counts(iteration: int, gating: Gating, harvest: Harvest, chosen: Sequence[Group]) -> Row:
    """The columns about groups and tokens."""
    groups, rule = harvest.groups, gating.rule if gating.acts else None
    flagged = [group for group in groups if flagged_in_time(group)]
    won = accounts.success(groups)
    uncut = [group for group in groups if not was_cut(group)]
    return {
        "iteration": iteration,
        "policy_version": iteration - 1,
        "gate_mode": gating.stage,
        "gate_step": None if rule is None else rule.steps[0],
        "gate_threshold": getattr(rule, "threshold", None),
        "groups": len(groups),
        "groups_failed": harvest.failed,
        "groups_restored": harvest.restored,
        "groups_refilled": harvest.refilled,
        "prompts_skipped": harvest.skipped,
        "groups_flagged": len(flagged),
        "groups_cut": len(groups) - len(uncut),
        "groups_audited": sum(group.decision is not None and group.decision.audited for group in groups),
        "groups_zero_variance": sum(is_flat(group) for group in uncut),
        "batch_groups": len(chosen),
        "batch_trajectories": sum(len(group.trajectories) for group in chosen),
        "steps": accounts.steps_taken(groups),
        "tokens_sampled": accounts.tokens_sampled(groups),
        "tokens_skipped_gate": accounts.tokens_skipped_by_gate(groups),
        "tokens_skipped_prompts": accounts.tokens_skipped_by_prompts(groups, harvest.skipped),
        "tokens_filtered": accounts.tokens_sampled(uncut) - accounts.tokens_sampled(chosen),
        "reward_mean": accounts.mean_reward(groups),
        "success": number(won.value),
        "success_low": number(won.low),
        "success_high": number(won.high),
    }


def _learned(update: Update) -> Row:
    """The columns about the update."""
    moved = update.skipped is None
    return {
        "zero_advantage_share": update.zero_advantage,
        "tokens_forwarded": update.tokens_forwarded,
        "tokens_trained": update.tokens_trained,
        "updated": moved,
        "loss": number(update.loss) if moved else None,
        "gradient_norm": number(update.gradient_norm) if moved else None,
        "logprob_difference": update.logprob_difference if moved else None,
        "importance_weight": update.importance_weight if moved else None,
        "truncated_share": update.truncated if moved else None,
        "peak_memory_bytes": update.peak_memory,
    }


def _audited(gating: Gating) -> Row:
    """The columns about the audit."""
    tally = gating.tally
    precision, recall = tally.precision(), tally.recall()
    return {
        "audit_flagged": tally.flagged,
        "audit_runs": tally.ran,
        "audit_zero_variance": tally.flat,
        "gate_precision": number(precision.value),
        "gate_precision_low": precision.low if tally.ran else None,
        "gate_precision_high": precision.high if tally.ran else None,
        "gate_recall": number(recall.value),
        "gate_recall_low": number(recall.low),
        "gate_recall_high": number(recall.high),
        "drift_e_value": number(tally.e_value(gating.target)) if tally.ran else None,
        "drift_alarm": gating.acts and gating.alarm,
    }
