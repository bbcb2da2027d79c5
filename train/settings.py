"""The configuration of a training run: every option, from a file and from flags, with the machine's defaults.

A file is TOML with the names of the flags as keys (`max-steps` or `max_steps`), or the run.json of an earlier run.
Flags override it. What is resolved is saved in run.json: as the run's identity, and as options that can be fed back in.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from collect.errors import InputError
from collect.prompt import PromptStyle

if TYPE_CHECKING:
    from collect.engine import Sampling
    from collect.policy import Policy
    from train.learner import LearnerSettings

Mode = Literal["off", "shadow", "on"]
OnDrift = Literal["warn", "tighten", "off"]

# What may differ between a run and its continuation, and is no part of its identity.
CHANGEABLE = ("iterations", "concurrency", "tensorboard", "wandb")

_FLAGS = {"horizon": "--max-steps", "from_run": "--from"}
_NAMES = {flag.removeprefix("--").replace("-", "_"): name for name, flag in _FLAGS.items()}

# How much is enough to see the whole loop work, in half an hour on two cores; and the paper's run.
_SMALL = {"iterations": 12, "groups": 4, "eval_every": 6, "eval_games": 16}
_LARGE = {"iterations": 60, "groups": 10, "eval_every": 10, "eval_games": 50}


def _words(value: Any) -> Any:
    """A list, or its items separated by commas, as flags have them."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def _threshold(value: Any) -> Any:
    if value in ("auto", "off"):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("must be auto, off or a number") from None


Count = Annotated[int, Field(ge=1)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words), Field(min_length=1)]


class Settings(BaseModel):
    """Every option of `sr train`; None where the machine's default is still to be filled in (see `resolve`).

    `docs/cli.md` says what each means.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # The task
    games: str = "train"
    from_run: str | None = None
    iterations: Count | None = None
    groups: Count | None = None
    group_size: Annotated[int, Field(ge=2)] = 8
    horizon: Count = 30
    seed: int = 7
    eval_on: str = "valid_unseen"
    eval_every: Annotated[int, Field(ge=0)] | None = None
    eval_games: Count | None = None

    # The policy and how it samples
    model: str | None = None
    adapter: str | None = None
    engine: str = "auto"
    environment: str = "compiled"
    temperature: Annotated[float, Field(gt=0)] = 0.7
    max_tokens: Count | None = None
    prompt: PromptStyle | None = None
    show_commands: bool | None = None
    deterministic: bool = False
    concurrency: Count = 4

    # The gate
    threshold: Annotated[float | Literal["auto", "off"], BeforeValidator(_threshold)] = "auto"
    gate: str | None = None
    gate_mode: Mode = "on"
    signal: str = "prefix_edit_distance_mean"
    at_step: Count | None = None
    target_precision: Annotated[float, Field(gt=0, le=1)] = 0.9
    warmup_iterations: Count = 6
    audit: Annotated[float, Field(ge=0, le=1)] = 0.2
    on_drift: OnDrift = "warn"

    # The batch
    skip_prompts: bool = False
    exploration: Annotated[float, Field(gt=0, le=1)] = 0.1
    drop_zero_variance: bool = False
    refill: Annotated[int, Field(ge=0)] = 0

    # The update
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    rank: Count | None = None
    alpha: Count | None = None
    target_modules: Words | None = None
    max_gradient_norm: Annotated[float, Field(gt=0)] = 1.0
    normalisation: Literal["trajectory", "token", "constant"] = "trajectory"
    constant: Annotated[float, Field(gt=0)] | None = None
    importance_cap: Annotated[float, Field(ge=0)] = 2.0
    micro_batch_tokens: Count = 2048
    gradient_checkpointing: bool = False
    dtype: Literal["bf16", "fp32"] | None = None

    # The log
    log_steps: Literal["all", "groups"] = "all"
    tensorboard: bool = False
    wandb: str | None = None

    # Matched arms
    arms: Annotated[tuple[Mode, ...], BeforeValidator(_words), Field(min_length=1)] | None = None
    seeds: Annotated[tuple[int, ...], BeforeValidator(_words), Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "Settings":
        from calibrate.signals import BY_NAME

        if self.signal not in BY_NAME:
            raise ValueError(f"--signal {self.signal}: unknown; one of {', '.join(BY_NAME)}")
        if self.at_step is not None and self.at_step >= self.horizon:
            raise ValueError(f"--at-step {self.at_step}: must be under --max-steps {self.horizon}")
        if self.threshold == "off" and self.gate is not None:
            raise ValueError(f"--gate {self.gate}: --threshold off does without a gate; give one of the two")
        if 0 < self.importance_cap < 1:
            raise ValueError(f"--importance-cap {self.importance_cap}: must be at least 1, or 0 for no weights")
        if (self.normalisation == "constant") != (self.constant is not None):
            raise ValueError(f"--normalisation {self.normalisation}: --constant goes with `constant` and nothing else")
        if self.seeds is not None and self.arms is None:
            raise ValueError("--seeds goes with --arms: --arms off,on --seeds 7,13")
        for name in ("arms", "seeds"):
            named = getattr(self, name) or ()
            if len(set(named)) < len(named):
                raise ValueError(f"{flag_of(name)} {brief(named)}: names one twice")
        if self.threshold == "off" and set(self.arms or ()) - {"off"}:
            raise ValueError(f"--arms {brief(self.arms)}: no arm has a gate with --threshold off; drop one of the two")
        if self.from_run is not None and (self.refill or self.skip_prompts):
            raise ValueError("--from: a frozen run has no fresh groups for --refill or --skip-prompts")
        return self

    @property
    def arm(self) -> Mode:
        """What the run is compared by: what its gate does."""
        return "off" if self.threshold == "off" else self.gate_mode

    @property
    def gate_fingerprint(self) -> str | None:
        """What the file of the gate holds, by its SHA-256; None without one."""
        return None if self.gate is None else hashlib.sha256(Path(self.gate).read_bytes()).hexdigest()

    @property
    def sampling(self) -> "Sampling":
        """How training samples: top-p is 1, for the learner knows no other distribution."""
        from collect.engine import Sampling

        assert self.max_tokens is not None
        return Sampling(self.temperature, 1.0, self.max_tokens)

    def learner(self) -> "LearnerSettings":
        """What the learner needs to know."""
        from train.learner import LearnerSettings

        assert self.dtype is not None
        same = [
            *("learning_rate", "rank", "alpha", "target_modules", "max_gradient_norm", "normalisation", "constant"),
            *("micro_batch_tokens", "gradient_checkpointing", "temperature", "seed"),
        ]
        return LearnerSettings(
            importance_cap=self.importance_cap or None,
            dtype=self.dtype,
            **{name: getattr(self, name) for name in same},
        )

    def configuration(self, policy: "Policy") -> dict[str, Any]:
        """What identifies the run, as JSON values: weights and gate by what they hold, not by where they lie."""
        same = self.model_dump(mode="json", exclude={*CHANGEABLE, "arms", "seeds"})
        policy_and_gate = {"model": policy.name, "adapter": policy.fingerprint, "gate": self.gate_fingerprint}
        return same | policy_and_gate | {"top_p": 1.0, "arm": self.arm}

    def options(self, policy: "Policy") -> dict[str, Any]:
        """What `--config` takes back."""
        adapter = "none" if policy.adapter is None else str(policy.adapter)
        return self.model_dump(mode="json") | {"model": policy.name, "adapter": adapter}


def gather(config: Path | None, flags: Mapping[str, Any]) -> Settings:
    """The settings of a file, if one is given, with those of the flags over them.

    Raises:
        InputError: a file that cannot be read, an unknown option, a value out of range, or options that contradict
            each other.
    """
    read = {} if config is None else read_config(config)
    values = {**read, **flags}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise InputError(str(first["ctx"]["error"])) from None
        name = str(first["loc"][0])
        where = flag_of(name) if name in flags or config is None else f"{config}: {name}"
        raise InputError(f"{where} {brief(values[name])}: {_reason(first)}") from None


def read_config(path: Path) -> dict[str, Any]:
    """The options that a TOML file or a run.json names; InputError when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: cannot be read ({error}); give a TOML file or a run.json") from error
    if path.suffix == ".json":
        return _options_of(path, text)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--config {path}: not TOML ({error})") from error
    words = {key: key.replace("-", "_") for key in content}
    return {_NAMES.get(word, word): content[key] for key, word in words.items()}


def _options_of(path: Path, text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)["facts"]["options"]
    except (ValueError, KeyError, TypeError):
        options = None
    if not isinstance(options, dict):
        raise InputError(f"--config {path}: not the run.json of sr train")
    return options


def resolve(settings: Settings, policy: "Policy") -> Settings:
    """The settings with the defaults of the machine and the policy in the place of every None that has one."""
    from collect.engine import resolve_engine

    prompt = settings.prompt or ("act" if policy.small else "react")
    defaults: dict[str, Any] = {
        **(_SMALL if policy.small else _LARGE),
        "prompt": prompt,
        "show_commands": prompt == "react",
        "max_tokens": 24 if prompt == "act" else 96,
        "dtype": "fp32" if settings.deterministic else "bf16",
    }
    missing = {name: value for name, value in defaults.items() if getattr(settings, name) is None}
    return settings.model_copy(update=missing | {"engine": resolve_engine(settings.engine, settings.deterministic)})


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def brief(value: Any) -> str:
    """A value as a flag has it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _reason(error: Any) -> str:
    """A complaint of pydantic in the words of this project."""
    told, context = error["type"], error.get("ctx", {})
    match told:
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "greater_than":
            return f"must be above {context['gt']:g}"
        case "less_than_equal":
            return f"must be at most {context['le']:g}"
        case "literal_error":
            return f"must be {context['expected']}"
        case "extra_forbidden":
            return "unknown option; sr train --help lists them"
        case "value_error":
            return str(context["error"])
    reason: str = error["msg"]
    return reason[0].lower() + reason[1:]
