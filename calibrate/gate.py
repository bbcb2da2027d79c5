"""The gate: one signal, one step, one threshold, and the evidence for them; it decides on live groups.

gate.json is a gate written out. It can be read without any of this project; `load` reads it back and checks it.

    gate = load(Path("gate.json"))
    decision = gate.decide([["look", "go to desk 1"], ["look", "go to shelf 2"]], eligible=True)
    if decision.enforced:
        ...  # stop the group here
"""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from calibrate.convention import Convention
from calibrate.signals import PREFIX_EDIT_DISTANCE
from collect.errors import InputError
from collect.files import replacing
from collect.trajectory import Decision

FORMAT_VERSION = 1

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Evidence(BaseModel):
    """What the gate did to the groups that it was chosen on. Bounds are 95 % intervals.

    `taken` groups are those that precision counts: cut ones, or flagged ones under the paper's convention. `recall` is
    of the zero-variance groups that could have been taken, `recall_of_all` of all. `saving` is a
    share of the sampled tokens, or of the step budget, as `saving_unit` says. A bound is null where the groups cannot
    give it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    groups: Count
    zero_variance: Count
    eligible: Count
    eligible_exactly: bool
    taken: Count
    cut: Count
    true_positives: Count
    false_positives: Count
    precision: Share
    precision_low: Share
    precision_high: Share
    recall: Share | None
    recall_of_all: Share | None
    saving_unit: Literal["tokens", "budget"]
    saving: Share
    saving_low: float | None
    saving_high: float | None
    net_saving: float
    net_saving_low: float | None
    net_saving_high: float | None
    break_even_precision: float
    advantage_l2_kept: Share


class Gate(BaseModel):
    """Cut a group at `step` when its signal is strictly under `threshold`.

    `group_size`, `horizon`, `model`, `adapter` and `prompt` say what rollouts it was fitted on (null where a table of
    signals did not say) and `data` is the SHA-256 of what the fit read. `certified` is false: nothing guarantees the
    precision on other groups.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format_version: Literal[1] = 1
    kind: Literal["threshold"] = "threshold"
    signal: str
    step: Annotated[int, Field(ge=1)]
    threshold: float
    group_size: Annotated[int, Field(ge=2)] | None
    horizon: Annotated[int, Field(ge=2)]
    model: str | None
    adapter: str | None
    prompt: str | None
    convention: Convention
    target_precision: Annotated[float, Field(gt=0, le=1)]
    certified: Literal[False] = False
    evidence: Evidence
    data: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    versions: dict[str, str]

    @field_validator("signal")
    @classmethod
    def _known(cls, signal: str) -> str:
        if signal != PREFIX_EDIT_DISTANCE.name:
            raise ValueError(f"unknown signal {signal!r}")
        return signal

    def decide(self, prefixes: Sequence[Sequence[str]], *, eligible: bool) -> Decision:
        """Decide on one live group from its trajectories' actions so far.

        Each prefix holds the actions sent to the game; only the first `step` count, and a trajectory that ended earlier
        has fewer. `eligible` says whether some trajectory is still running after `step` actions: only then is there
        something to cut. The decision is enforced when the group is flagged and eligible.

        Raises:
            InputError: the group has another size than the gate was fitted on.
        """
        if self.group_size is not None and len(prefixes) != self.group_size:
            raise InputError(
                f"the gate was fitted on groups of {self.group_size} and got {len(prefixes)} prefixes; "
                f"fit one for this group size"
            )
        score = PREFIX_EDIT_DISTANCE.at_step(prefixes, self.step)
        flagged = score < self.threshold
        return Decision(self.step, score, self.threshold, flagged, enforced=flagged and eligible)


def versions() -> dict[str, str]:
    """Versions of what computes and compares signals."""
    packages = ("selective-rollout", "numpy", "rapidfuzz")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def save(gate: Gate, path: Path) -> None:
    """Write gate.json, whole or not at all; InputError when the place cannot be written to."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(gate.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); give another --out") from error


def load(path: Path) -> Gate:
    """Read gate.json back; InputError when it is absent, damaged or of a newer version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a gate; give a gate.json that sr calibrate wrote") from error
    told = content.get("format_version") if isinstance(content, dict) else None
    if isinstance(told, int) and told > FORMAT_VERSION:
        raise InputError(f"{path}: made by a newer version of selective-rollout; upgrade to read it")
    try:
        return Gate.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"{path}: not a valid gate ({where}: {first['msg']}); fit it again") from error
