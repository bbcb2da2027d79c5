"""The learner: a base model with a LoRA adapter, its optimizer, and one GRPO update at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from collect.errors import InputError
from collect.policy import Policy
from train.batch import Example

Normalisation = Literal["trajectory", "token", "constant"]
DType = Literal["bf16", "fp32"]


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How the policy learns. `docs/training.md` says what each part of the loss means.

    `temperature` > 0 is the one that the trajectories were sampled with. `rank`, `alpha` and `target_modules` (names of
    linear layers) are those of the policy's adapter where they are None, or 16, 32 and all linear layers where it has
    none. `normalisation` is what the sum over tokens is divided by: the number of trajectories, the number of sampled
    tokens, or `constant`. `importance_cap` ≥ 1 bounds the importance weights; None does without them.
    `micro_batch_tokens` is the most tokens of a forward pass (a longer trajectory has one to itself): it bounds memory
    and does not change the result.

    Raises:
        InputError: a value is out of its range.
    """

    temperature: float
    learning_rate: float = 1e-4
    rank: int | None = None
    alpha: int | None = None
    target_modules: tuple[str, ...] | None = None
    max_gradient_norm: float = 1.0
    normalisation: Normalisation = "trajectory"
    constant: float | None = None
    importance_cap: float | None = 2.0
    micro_batch_tokens: int = 4096
    gradient_checkpointing: bool = False
    dtype: DType = "bf16"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (
            ("temperature", self.temperature),
            ("learning-rate", self.learning_rate),
            ("max-gradient-norm", self.max_gradient_norm),
            ("micro-batch-tokens", self.micro_batch_tokens),
            ("rank", self.rank),
            ("alpha", self.alpha),
            ("constant", self.constant),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"--{name} {value}: must be above 0")
        if self.importance_cap is not None and not self.importance_cap >= 1:
            raise InputError(f"--importance-cap {self.importance_cap}: must be at least 1")
        if (self.normalisation == "constant") != (self.constant is not None):
            raise InputError(f"--normalisation {self.normalisation}: --constant goes with `constant` and nothing else")


@dataclass(frozen=True, slots=True)
class Update:
    """What one update did. A mean or share of nothing is None.

    Args:
        number: updates that the adapter has taken, this one included; skipped ones do not count.
        skipped: why the adapter was left as it was; None when it moved.
        examples: trajectories in the batch.
        zero_advantage: share of them with advantage 0.
        loss: -1/Z · sum of weight · advantage · log-probability over sampled tokens; 0 when skipped.
        gradient_norm: of the whole gradient before clipping; 0 when skipped.
        logprob_difference: mean |learner's - sampler's log-probability| over the tokens trained on.
        importance_weight: mean weight of those tokens, truncated.
        truncated: share of those tokens whose weight met the cap.
        tokens: of all examples.
        tokens_forwarded: of the examples with a gradient; the others need no forward pass.
        tokens_trained: sampled tokens among those.
        seconds: wall-clock of the update.
        peak_memory: bytes; on a GPU the most that PyTorch held during the update, on a CPU the most that the process
            has held so far.
    """

    number: int
    skipped: str | None
    examples: int
    zero_advantage: float | None
    loss: float
    gradient_norm: float
    logprob_difference: float | None
    importance_weight: float | None
    truncated: float | None
    tokens: int
    tokens_forwarded: int
    tokens_trained: int
    seconds: float
    peak_memory: int


class Learner:
    """See the module's docstring. `number` counts the updates that the adapter has taken."""

    number: int

    def __init__(self, policy: Policy, settings: LearnerSettings) -> None:
        """Load the policy; a fresh adapter, seeded, where it has none.

        Raises:
            InputError: the model cannot be loaded or trained, or its adapter has another rank, alpha or other targets.
        """
        raise NotImplementedError

    def update(self, examples: Sequence[Example]) -> Update:
        """One step of AdamW on the batch."""
        raise NotImplementedError

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter as PEFT does, whole or not at all; a folder that is there is replaced."""
        raise NotImplementedError

    def save_state(self, folder: Path) -> None:
        """Write all that `load_state` needs to go on bit for bit, whole or not at all; a folder there is replaced."""
        raise NotImplementedError

    def load_state(self, folder: Path) -> None:
        """Go on from what `save_state` wrote.

        Raises:
            InputError: it is not there, damaged, or of another adapter.
        """
        raise NotImplementedError

    def sleep(self) -> None:
        """Leave the GPU to the engine; does nothing on a CPU or a GPU of its own."""
        raise NotImplementedError

    def wake(self) -> None:
        """Take the GPU back."""
        raise NotImplementedError

    def follow(self) -> None:
        """Under torchrun, what every process but the first does: its share of each update, until the first closes."""
        raise NotImplementedError

    def close(self) -> None:
        """Let the processes that follow end, and free the model."""
        raise NotImplementedError
