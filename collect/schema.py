"""The columns of a run's Parquet files, written once. `docs/data.md` is generated from this module.

Arrow types are fixed here and never inferred. A table's `key` names the columns that identify a row. Steps are counted
from 1, trajectories of a group from 0. All seconds are wall-clock seconds; all log-probabilities are natural logarithms
under the distribution that was really sampled from (temperature and top-p applied). `sr import` writes the logs of
other trainers in these columns; what such logs lack is null.
"""

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 1

TEXT = pa.string()
LABEL = pa.dictionary(pa.int32(), pa.string())  # few distinct values: dictionary-encoded


@dataclass(frozen=True)
class Column:
    """One column: its name, its fixed arrow type, what it holds (unit, range, meaning of null)."""

    name: str
    type: pa.DataType
    comment: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """One table of a run: the folder `name`/part-*.parquet, a comment, its key and its columns."""

    name: str
    comment: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def arrow(self) -> pa.Schema:
        """The arrow schema, with the schema version and every comment as metadata."""
        fields = [pa.field(c.name, c.type, c.nullable, metadata={"comment": c.comment}) for c in self.columns]
        return pa.schema(fields, metadata={"selective_rollout_schema": str(SCHEMA_VERSION)})


def _if_logged(name: str, kind: pa.DataType, comment: str) -> Column:
    """A column that every rollout of this project fills, and that logs of other trainers may lack."""
    return Column(name, kind, f"{comment}; null where imported without it", True)


GROUPS = Table(
    "groups",
    "One row a group: the G rollouts of one visit to one game, all of which ended without an error.",
    ("group_id",),
    (
        Column("group_id", TEXT, "`<game_id>#<visit>`; unique in a run"),
        Column("game_id", TEXT, "`<task>/<trial>`: the game's folder below its split"),
        _if_logged("split", LABEL, "train, valid_seen, valid_unseen, or given for a folder of no named split"),
        _if_logged("task_type", LABEL, "one of ALFWorld's six task types"),
        Column(
            "visit",
            pa.int32(),
            "how often the run had visited this game before, from 0; below 0: a fresh group that took the place of "
            "another in training",
        ),
        Column("group_size", pa.int32(), "G, the number of trajectories, at least 2"),
        Column("horizon", pa.int32(), "the most steps a trajectory may take"),
        _if_logged("policy_version", pa.int32(), "iterations of training behind the policy; 0 when collecting"),
        _if_logged("seed", pa.int64(), "seed from which every request of the group derives its own"),
        Column("rewards", pa.list_(pa.float64()), "final reward of each trajectory, in order; truncated where cut"),
        _if_logged("started", pa.timestamp("us", "UTC"), "when its first trajectory began"),
        _if_logged(
            "seconds",
            pa.float64(),
            "from `started` to the end of the last trajectory, with what they waited for a turn to sample",
        ),
        Column("gate_evaluated", pa.bool_(), "whether a gate decided on this group"),
        Column("gate_step", pa.int32(), "step K at which it decided; null when not evaluated", True),
        Column("gate_score", pa.float64(), "the signal's value there; null when not evaluated", True),
        Column("gate_threshold", pa.float64(), "the threshold it was held against; null when not evaluated", True),
        Column("gate_flagged", pa.bool_(), "whether the gate flagged the group; null when not evaluated", True),
        Column("gate_enforced", pa.bool_(), "whether the group was cut; null when not evaluated", True),
        Column("gate_audited", pa.bool_(), "flagged, but let run to audit the gate; null when not evaluated", True),
    ),
)

TRAJECTORIES = Table(
    "trajectories",
    "One row a trajectory of a group.",
    ("group_id", "trajectory"),
    (
        Column("group_id", TEXT, "the group it belongs to"),
        Column("trajectory", pa.int32(), "index in the group, 0 to G - 1"),
        Column("reward", pa.float64(), "final reward; ALFWorld gives 1 for success, else 0; truncated where cut"),
        _if_logged("won", pa.bool_(), "whether the game was won"),
        Column("length", pa.int32(), "steps taken, 0 to the horizon"),
        _if_logged("ending", LABEL, "won, horizon, cut (by the gate) or context (the model's context was full)"),
        Column("actions", pa.list_(TEXT), "the commands sent to the game, one a step"),
        Column(
            "action_symbols",
            TEXT,
            "the same actions, one character each (from U+4E00 on, by first appearance in the group): equal characters "
            "are equal actions within the group, so `levenshtein` of two strings is the actions' edit distance",
        ),
        _if_logged("reply_tokens", pa.list_(pa.int32()), "tokens the policy sampled in each step"),
        _if_logged("token_ids", pa.list_(pa.int32()), "every token of the conversation, exactly as the policy saw it"),
        _if_logged("policy_mask", pa.list_(pa.bool_()), "for each token id: did the policy sample it"),
        _if_logged("logprobs", pa.list_(pa.float32()), "sampling log-probability of each sampled token, in order"),
        _if_logged("final_observation", TEXT, "what the game answered to the last action"),
    ),
)

STEPS = Table(
    "steps",
    "One row a step of a trajectory.",
    ("group_id", "trajectory", "step"),
    (
        Column("group_id", TEXT, "the group it belongs to"),
        Column("trajectory", pa.int32(), "index of the trajectory in the group"),
        Column("step", pa.int32(), "1 for the first action, up to the trajectory's length"),
        _if_logged("observation", TEXT, "what the policy read when choosing this action"),
        _if_logged("admissible_commands", pa.list_(TEXT), "the commands that the game admitted then"),
        _if_logged("reply", TEXT, "what the policy said, without its end-of-turn token"),
        Column("action", TEXT, "the command sent to the game"),
        _if_logged("match", LABEL, "how the reply became an admissible command: exact, folded, fuzzy, or none"),
        _if_logged("reward", pa.float64(), "reward of this step"),
        _if_logged("prompt_tokens", pa.int32(), "length of the prompt, in tokens"),
        _if_logged("reply_tokens", pa.int32(), "tokens sampled"),
        _if_logged("reply_logprob", pa.float64(), "sum of the sampled tokens' log-probabilities"),
        _if_logged("engine_seconds", pa.float64(), "from asking the engine to its reply, waiting included"),
        _if_logged(
            "environment_seconds", pa.float64(), "from sending the command to the game's answer, waiting included"
        ),
    ),
)

ERRORS = Table(
    "errors",
    "One row a failed attempt at a group. Such a group has no row elsewhere until a later attempt succeeds.",
    ("group_id", "failed"),
    (
        Column("group_id", TEXT, "the group that was attempted"),
        Column("failed", pa.timestamp("us", "UTC"), "when"),
        Column("boundary", LABEL, "environment or engine: where it failed"),
        Column("message", TEXT, "what was said"),
    ),
)

TABLES = (GROUPS, TRAJECTORIES, STEPS, ERRORS)  # in parts, one folder each

_NO_UPDATE = "null without an update"
_NO_AUDIT = "null before an audit"

ITERATIONS = Table(
    "iterations",
    "One row an iteration of training; one file, iterations.parquet. What is counted over audits is of the whole run "
    "up to then, since the gate was last tightened.",
    ("iteration",),
    (
        Column("iteration", pa.int32(), "1 for the first"),
        Column("policy_version", pa.int32(), "of the policy that rolled out, as in groups: iteration - 1"),
        Column("gate_mode", LABEL, "off, warmup (ungated, to calibrate a gate on), shadow (it only looks) or on"),
        Column("gate_step", pa.int32(), "the first step K at which the gate decides; null without one", True),
        Column("gate_threshold", pa.float64(), "its threshold; null without a gate or where it has several", True),
        Column("groups", pa.int32(), "groups rolled out without an error, fresh ones of --refill included"),
        Column("groups_failed", pa.int32(), "groups given up after errors"),
        Column(
            "groups_restored",
            pa.int32(),
            "of `groups`, those that an interrupted session had rolled out; their seconds are not in seconds_rollout",
        ),
        Column("groups_refilled", pa.int32(), "of `groups`, fresh ones in the place of cut and zero-variance ones"),
        Column("prompts_skipped", pa.int32(), "prompts passed over before the rollout, for their history"),
        Column("groups_flagged", pa.int32(), "groups that the gate flagged while there was something to cut"),
        Column("groups_cut", pa.int32(), "of these, groups that were cut"),
        Column("groups_audited", pa.int32(), "of these, groups that were let run to audit the gate"),
        Column("groups_zero_variance", pa.int32(), "uncut groups with equal rewards"),
        Column("batch_groups", pa.int32(), "groups in the batch"),
        Column("batch_trajectories", pa.int32(), "trajectories in the batch"),
        Column(
            "zero_advantage_share", pa.float64(), "of them, the share with advantage 0; null for an empty batch", True
        ),
        Column("steps", pa.int64(), "steps taken"),
        Column("tokens_sampled", pa.int64(), "tokens that the policy sampled"),
        Column(
            "tokens_skipped_gate",
            pa.float64(),
            "estimate: what cut trajectories would have sampled past K, from the uncut trajectories of the iteration "
            "that went past K, or, without one, as many tokens a step as before K, up to the horizon",
        ),
        Column(
            "tokens_skipped_prompts",
            pa.float64(),
            "estimate: prompts_skipped times the mean tokens of an uncut group of the iteration",
        ),
        Column("tokens_filtered", pa.int64(), "tokens sampled in uncut groups that were kept out of the batch"),
        Column("tokens_forwarded", pa.int64(), "tokens that the learner read, prompts included"),
        Column("tokens_trained", pa.int64(), "sampled tokens that the update learned from"),
        Column("reward_mean", pa.float64(), "mean reward of the uncut groups; null without one", True),
        Column("success", pa.float64(), "share of trajectories won in uncut groups; null without one", True),
        Column("success_low", pa.float64(), "its exact 95 % interval, each group counted as one draw", True),
        Column("success_high", pa.float64(), "upper bound of it", True),
        Column("updated", pa.bool_(), "whether the adapter moved; it does not without an advantage in the batch"),
        Column("loss", pa.float64(), f"the loss; {_NO_UPDATE}", True),
        Column("gradient_norm", pa.float64(), f"norm of the gradient before clipping; {_NO_UPDATE}", True),
        Column(
            "logprob_difference",
            pa.float64(),
            f"mean |log-probability of the learner - of the sampler| of the tokens trained on; {_NO_UPDATE}",
            True,
        ),
        Column("importance_weight", pa.float64(), f"their mean importance weight, truncated; {_NO_UPDATE}", True),
        Column("truncated_share", pa.float64(), f"share of their weights that met the cap; {_NO_UPDATE}", True),
        Column("seconds_rollout", pa.float64(), "from the first request to the end of the last group"),
        Column("seconds_gate", pa.float64(), "of these, seconds in which the gate decided"),
        Column("seconds_update", pa.float64(), "the update"),
        Column("seconds_swap", pa.float64(), "saving the adapter and giving it to the engine"),
        Column("seconds_evaluation", pa.float64(), "evaluation on held-out games; 0 where none was due"),
        Column("seconds_other", pa.float64(), "the rest: writing, fitting a gate, checkpoint of the iteration before"),
        Column("seconds", pa.float64(), "the whole iteration"),
        Column("peak_memory_bytes", pa.int64(), "most memory of the learner: the GPU's, or on a CPU the process's"),
        Column("audit_flagged", pa.int32(), "groups flagged while there was something to cut, since the audit began"),
        Column("audit_runs", pa.int32(), "m: of these, groups that ran to their end"),
        Column("audit_zero_variance", pa.int32(), "x: of those m, zero-variance groups"),
        Column("gate_precision", pa.float64(), f"x / m; {_NO_AUDIT}", True),
        Column("gate_precision_low", pa.float64(), f"its exact (Clopper-Pearson) 95 % interval; {_NO_AUDIT}", True),
        Column("gate_precision_high", pa.float64(), f"upper bound of it; {_NO_AUDIT}", True),
        Column(
            "gate_recall", pa.float64(), "share of zero-variance groups flagged, audits weighted; null if unknown", True
        ),
        Column("gate_recall_low", pa.float64(), "its 95 % interval; null if unknown", True),
        Column("gate_recall_high", pa.float64(), "upper bound of it; null if unknown", True),
        Column("drift_e_value", pa.float64(), f"evidence that the precision is under its target; {_NO_AUDIT}", True),
        Column("drift_alarm", pa.bool_(), "whether it was enough for an alarm"),
    ),
)

EVALUATIONS = Table(
    "evaluations",
    "One row an evaluation on held-out games, greedy and ungated; one file, evaluations.parquet.",
    ("iteration",),
    (
        Column("iteration", pa.int32(), "the iteration after which it was made; 0 before the first"),
        Column("policy_version", pa.int32(), "iterations of training behind the policy: the same number"),
        Column("games", pa.int32(), "n, games played to their end"),
        Column("games_failed", pa.int32(), "games given up after errors, which are in no rate"),
        Column("won", pa.int32(), "games won"),
        Column("success", pa.float64(), "won / games; null without a game", True),
        Column("success_low", pa.float64(), "its exact (Clopper-Pearson) 95 % interval; null without a game", True),
        Column("success_high", pa.float64(), "upper bound of it; null without a game", True),
        Column("mean_steps", pa.float64(), "mean steps of a game; null without a game", True),
        Column("tokens", pa.int64(), "tokens that the policy said"),
        Column("seconds", pa.float64(), "the whole evaluation"),
        Column("game_ids", pa.list_(TEXT), "the games, sorted"),
        Column("game_won", pa.list_(pa.bool_()), "whether each was won, in the same order"),
    ),
)

TRAINING_TABLES = (ITERATIONS, EVALUATIONS)  # a file each, which only a training run has
