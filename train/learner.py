"""The learner: a base model with a LoRA adapter, its optimizer, and one GRPO update at a time."""

import gc
import json
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from collect.errors import InputError
from collect.files import replacing_folder
from collect.policy import Policy
from train.batch import Example, Normalisation, denominator

if TYPE_CHECKING:
    import torch

    from train.layout import Layout
    from train.packing import Pack

_TENSORS, _NUMBERS = "state.safetensors", "state.json"
_RANDOM = "random"

DType = Literal["bf16", "fp32"]


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How the policy learns. `docs/training.md` says what each part of the loss means.

    `temperature` > 0 is the one that the trajectories were sampled with. `rank`, `alpha` and `target_modules` (names of
    linear layers) are those of the policy's adapter where they are None, or 16, 32 and all linear layers where it has
    none. `normalisation` is what the sum over tokens is divided by: the number of trajectories, the number of sampled
    tokens, or `constant`. `importance_cap` ≥ 1 bounds the importance weights; None does without them.
    `micro_batch_tokens` is the most tokens of a forward pass (a longer trajectory has one to itself): it bounds memory
    and does not change the result. A CPU gains nothing by more, and loses a quarter of its speed at twice as many.

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
    micro_batch_tokens: int = 2048
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
    """See the module's docstring.

    `layout` says where; by default what the machine and torchrun's environment ask for.
    """

    def __init__(self, policy: Policy, settings: LearnerSettings, layout: "Layout | None" = None) -> None:
        """Load the policy; a fresh adapter, seeded, where it has none.

        Raises:
            InputError: the model cannot be loaded or trained, or its adapter has another rank, alpha or other targets.
        """
        import torch

        from train.adapter import checkpoint_layers, load_adapted
        from train.layout import Peers, find_layout
        from train.optimizer import Optimizer

        self._policy, self._settings = policy, settings
        self._layout = layout or find_layout()
        self._peers = Peers(self._layout)
        self._model = load_adapted(
            policy,
            torch.bfloat16 if settings.dtype == "bf16" else torch.float32,
            self._layout.device,
            rank=settings.rank,
            alpha=settings.alpha,
            target_modules=settings.target_modules,
            seed=settings.seed,
        )
        if settings.gradient_checkpointing:
            checkpoint_layers(self._model)
        adapter = {name: weight for name, weight in self._model.named_parameters() if weight.requires_grad}
        self._optimizer = Optimizer(adapter, settings.learning_rate, settings.max_gradient_norm)
        self._awake = True
        self._closing = False
        self._thread = ThreadPoolExecutor(1, "learner")
        self._thread.submit(_prepare).result()

    @property
    def number(self) -> int:
        """Updates that the adapter has taken, over all sessions."""
        return self._optimizer.number

    @property
    def leads(self) -> bool:
        """Whether this process is the one that samples; one that does not calls `follow` and nothing else."""
        return self._layout.rank == 0

    def update(self, examples: Sequence[Example]) -> Update:
        """One step on the batch.

        The adapter and the optimizer stay as they are, and `Update.skipped` says why, when no example has both an
        advantage and a sampled token, or when the gradient is not finite.
        """
        content = [[e.group, e.token_ids, e.policy_mask, e.logprobs, e.advantage] for e in examples]
        self._peers.tell(["update", content])
        return self._thread.submit(self._update, examples).result()

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter as PEFT does, in the learner's precision, whole or not at all; replaces a folder there."""
        from train.adapter import write_adapter

        with replacing_folder(folder) as temporary:
            write_adapter(self._model, self._policy.name, temporary)

    def save_state(self, folder: Path) -> None:
        """Write all that `load_state` needs to go on bit for bit, whole or not at all; replaces a folder there.

        state.safetensors holds the adapter and AdamW's moments in fp32 and PyTorch's random state; state.json the
        number of updates.
        """
        import torch
        from safetensors.torch import save_file

        state = self._optimizer.state() | {_RANDOM: torch.get_rng_state()}
        with replacing_folder(folder) as temporary:
            save_file({name: tensor.to("cpu").contiguous() for name, tensor in state.items()}, temporary / _TENSORS)
            (temporary / _NUMBERS).write_text(json.dumps({"updates": self.number}) + "\n")

    def load_state(self, folder: Path) -> None:
        """Go on from what `save_state` wrote, in every process.

        Raises:
            InputError: it is not there, damaged, or of another adapter.
        """
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        self.wake()
        try:
            number = int(json.loads((folder / _NUMBERS).read_text())["updates"])
            state = load_file(folder / _TENSORS)
            torch.set_rng_state(state.pop(_RANDOM))
            self._optimizer.load(state, number)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            told = str(error).strip().partition("\n")[0]
            raise InputError(f"{folder}: is not a state that this learner can go on from ({told})") from error
        self._peers.tell(["load", number])
        self._peers.spread(list(self._optimizer.state().values()))

    @property
    def shares(self) -> bool:
        """Whether it shares its GPU with the engine: only one of them can be awake."""
        return self._layout.shared

    def sleep(self) -> None:
        """Leave a GPU that is shared with the engine; does nothing elsewhere."""
        if self._layout.shared and self._awake:
            self._move("cpu")
            self._awake = False

    def wake(self) -> None:
        """Take the GPU back."""
        if not self._awake:
            self._move(self._layout.device)
            self._awake = True

    def follow(self) -> None:
        """Under torchrun, what every process but the first does: its share of each update, until the first closes."""
        while True:
            order, content = self._peers.hear()
            if order == "update":
                batch = [Example(g, tuple(ids), tuple(mask), tuple(q), a) for g, ids, mask, q, a in content]
                self._thread.submit(self._update, batch).result()
            elif order == "load":
                state = self._optimizer.blank(content)
                self._peers.spread(list(state.values()))
                self._optimizer.load(state, content)
            else:
                return

    def close(self) -> None:
        """Let the processes that follow end, and free the model; the learner is of no use afterwards."""
        self._closing = True
        if self.leads:
            self._peers.tell(["close", None])
        self._peers.part()
        self._thread.shutdown()
        del self._model, self._optimizer
        gc.collect()  # they refer to each other
        self._empty_cache()

    def _update(self, examples: Sequence[Example]) -> Update:
        from train.packing import forwarded, shares

        self.wake()
        began = time.perf_counter()
        settings, peers = self._settings, self._peers
        teaching = [example for example in examples if example.teaches]
        lengths = [forwarded(example) for example in teaching]
        z = denominator(examples, settings.normalisation, settings.constant)
        mine = [teaching[index] for index in shares(lengths, peers.count)[peers.rank]]
        self._count_memory()
        tally = self._learn(mine, z)
        peers.add(self._optimizer.gradients)
        peers.add([tally])
        norm = self._optimizer.step() if teaching else 0.0
        loss, difference, weight, truncated, trained = tally.tolist()
        skipped = None
        if not teaching:
            skipped = "no example has an advantage and a sampled token" if examples else "no examples"
        elif not norm < float("inf"):
            skipped = "the gradient is not finite"
            trained = 0
        return Update(
            number=self.number,
            skipped=skipped,
            examples=len(examples),
            zero_advantage=_mean(sum(example.advantage == 0 for example in examples), len(examples)),
            loss=0.0 if skipped else loss,
            gradient_norm=0.0 if skipped else norm,
            logprob_difference=_mean(difference, trained),
            importance_weight=_mean(weight, trained),
            truncated=_mean(truncated, trained),
            tokens=sum(len(example.token_ids) for example in examples),
            tokens_forwarded=sum(lengths),
            tokens_trained=int(trained),
            seconds=time.perf_counter() - began,
            peak_memory=self._peak_memory(),
        )

    def _learn(self, examples: Sequence[Example], z: float) -> "torch.Tensor":
        """Add the gradient of these examples; returns sums: loss, |difference|, weight, truncated, sampled tokens."""
        import torch

        from train.grpo import importance_weights, policy_loss
        from train.packing import packs

        cap = self._settings.importance_cap
        tally = torch.zeros(5, dtype=torch.float64)
        for pack in packs(examples, self._settings.micro_batch_tokens, self._layout.device):
            if self._closing:  # whoever waited was interrupted
                raise RuntimeError("the learner was closed in an update")
            logprobs = self._logprobs(pack)
            weights = importance_weights(logprobs, pack.sampled, cap)
            loss = policy_loss(logprobs, pack.advantages, weights, z)
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                difference = (logprobs - pack.sampled).abs().sum()
                truncated = (weights == cap).sum() if cap else torch.zeros(())
                tally += torch.tensor(
                    [float(x) for x in (loss, difference, weights.sum(), truncated, len(pack.targets))],
                    dtype=torch.float64,
                )
        return tally.to(self._layout.device)

    def _logprobs(self, pack: "Pack") -> "torch.Tensor":
        """The log-probability of each sampled token of the pack, under the distribution that it was sampled from."""
        from train.adapter import decoder_of, head_of
        from train.likelihood import log_probabilities

        hidden = decoder_of(self._model)(
            input_ids=pack.token_ids, position_ids=pack.position_ids, lengths=pack.lengths, use_cache=False
        ).last_hidden_state[0]
        return log_probabilities(hidden[pack.before], head_of(self._model), pack.targets, self._settings.temperature)

    def _count_memory(self) -> None:
        import torch

        if self._layout.device != "cpu":
            torch.cuda.reset_peak_memory_stats(self._layout.device)

    def _peak_memory(self) -> int:
        import torch

        if self._layout.device == "cpu":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return torch.cuda.max_memory_allocated(self._layout.device)

    def _move(self, device: str) -> None:
        self._model.to(device)
        self._optimizer.move(device)
        self._empty_cache()

    def _empty_cache(self) -> None:
        import torch

        if self._layout.device != "cpu":
            torch.cuda.empty_cache()


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


def _prepare() -> None:
    """Have this thread, and those that will compute for it, take for zero the tiny numbers that CPUs are slow at.

    The surer a policy, the more of them: attention that is very sure took up to seven times as long. It is a property
    of threads, which those of PyTorch's pool take over from the thread that first makes them work, and would be wrong
    for statistics: hence a thread for the learner.
    """
    import torch

    torch.set_flush_denormal(True)
