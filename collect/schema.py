"""The columns of a run's Parquet files, written once. `docs/data.md` is generated from this module.

Arrow types are fixed here and never inferred. A table's `key` names the columns that identify a row. Steps are counted
from 1, trajectories of a group from 0. All seconds are wall-clock seconds; all log-probabilities are natural logarithms
under the distribution that was really sampled from (temperature and top-p applied).
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


GROUPS = Table(
    "groups",
    "One row a group: the G rollouts of one visit to one game, all of which ended without an error.",
    ("group_id",),
    (
        Column("group_id", TEXT, "`<game_id>#<visit>`; unique in a run"),
        Column("game_id", TEXT, "`<task>/<trial>`: the game's folder below its split"),
        Column("split", LABEL, "train, valid_seen, valid_unseen, or given for a folder of no named split"),
        Column("task_type", LABEL, "one of ALFWorld's six task types"),
        Column("visit", pa.int32(), "how often the run had visited this game before, from 0"),
        Column("group_size", pa.int32(), "G, the number of trajectories, at least 2"),
        Column("horizon", pa.int32(), "the most steps a trajectory may take"),
        Column("policy_version", pa.int32(), "how many updates the policy had seen; 0 when collecting"),
        Column("seed", pa.int64(), "seed from which every request of the group derives its own"),
        Column("rewards", pa.list_(pa.float64()), "final reward of each trajectory, in order; truncated where cut"),
        Column("started", pa.timestamp("us", "UTC"), "when the first game instance was asked for"),
        Column("seconds", pa.float64(), "from `started` to the end of the last trajectory"),
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
        Column("won", pa.bool_(), "whether the game was won"),
        Column("length", pa.int32(), "steps taken, 0 to the horizon"),
        Column("ending", LABEL, "won, horizon, cut (by the gate) or context (the model's context was full)"),
        Column("actions", pa.list_(TEXT), "the commands sent to the game, one a step"),
        Column(
            "action_symbols",
            TEXT,
            "the same actions, one character each (from U+4E00 on, by first appearance in the group): equal characters "
            "are equal actions within the group, so `levenshtein` of two strings is the actions' edit distance",
        ),
        Column("reply_tokens", pa.list_(pa.int32()), "tokens the policy sampled in each step"),
        Column("token_ids", pa.list_(pa.int32()), "every token of the conversation, exactly as the policy saw it"),
        Column("policy_mask", pa.list_(pa.bool_()), "for each token id: did the policy sample it"),
        Column("logprobs", pa.list_(pa.float32()), "sampling log-probability of each sampled token, in order"),
        Column("final_observation", TEXT, "what the game answered to the last action"),
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
        Column("observation", TEXT, "what the policy read when choosing this action"),
        Column("admissible_commands", pa.list_(TEXT), "the commands that the game admitted then"),
        Column("reply", TEXT, "what the policy said, without its end-of-turn token"),
        Column("action", TEXT, "the command sent to the game"),
        Column("match", LABEL, "how the reply became an admissible command: exact, folded, fuzzy, or none"),
        Column("reward", pa.float64(), "reward of this step"),
        Column("prompt_tokens", pa.int32(), "length of the prompt, in tokens"),
        Column("reply_tokens", pa.int32(), "tokens sampled"),
        Column("reply_logprob", pa.float64(), "sum of the sampled tokens' log-probabilities"),
        Column("engine_seconds", pa.float64(), "from asking the engine to its reply, waiting included"),
        Column("environment_seconds", pa.float64(), "from sending the command to the game's answer, waiting included"),
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

TABLES = (GROUPS, TRAJECTORIES, STEPS, ERRORS)
