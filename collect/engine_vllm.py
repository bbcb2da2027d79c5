"""The engine of choice where it is installed: vLLM, in this process, on a GPU or a CPU.

vLLM batches continuously and keeps the keys and values of finished turns by the tokens that they are of, so the next
turn of a conversation finds them. Requests have their own seeds, but what else is in the batch moves the last bits of a
log-probability, and now and then a token: only the transformers engine gives the same bits whatever is in flight.

An adapter is served in one of two ways. On a CPU it is merged into the weights, in fp32 and rounded once, and the
weights are replaced in place: LoRA kernels are three to four times slower there. On a GPU it is a LoRA request. Either
way no adapter ever meets keys and values that another one computed: merging drops them all, and a LoRA request has a
name of its own for every adapter, by which vLLM tells them apart.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal, Protocol

from collect.engine import Request, vllm_is_for_cpus
from collect.engine_thread import Running
from collect.errors import EngineFault, InputError
from collect.policy import Policy, load_model

# Memory for keys and values on a CPU, which vLLM takes all at once: a share of what is free, and at most so many bytes.
KV_SHARE, KV_MOST = 0.25, 2 << 30
CPU_BLOCK = (
    32  # tokens; the smallest that its kernels like: the part of a turn that no whole block holds is computed anew
)
SMALL_HIDDEN_SIZE = 1024  # under it, threads on a CPU wait for each other longer than they work
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM can reserve space for
LEAST_LORA_RANK = 64  # reserved even where the first adapter needs less: a later one may need more
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


class VllmDecoder:
    """See the module's docstring; see `collect.engine_thread.Decoder` for what the methods promise."""

    def __init__(
        self,
        policy: Policy,
        precision: Literal["bfloat16", "float32"] = "bfloat16",
        adapters: Literal["merged", "lora"] | None = None,
        lora_rank: int | None = None,
    ) -> None:
        """Load the policy, in `precision`; `adapters` says how they are served, by default as suits the machine.

        `lora_rank` is the highest rank of later adapters, if it is known.

        Raises:
            InputError: vLLM cannot load the model, or the adapter does not fit it.
        """
        lora = adapters == "lora" if adapters else not vllm_is_for_cpus()
        with _silence():
            self._engine = _open(policy, precision, lora, lora_rank)
        self._adapters: _Adapters = _LoraRequests(self._engine) if lora else _Merged(self._engine)
        self._running: dict[str, Running] = {}
        self._ids = map(str, count())
        self._asleep = False
        self.context: int = self._engine.model_config.max_model_len
        if policy.adapter is not None:
            self.adapt(policy)

    def start(self) -> None:
        """Settle how many threads work for this one; vLLM's kernels give wrong results when that changes under them."""
        if vllm_is_for_cpus():
            import torch

            small = self._engine.model_config.get_hidden_size() < SMALL_HIDDEN_SIZE
            threads = 1 if small else len(os.sched_getaffinity(0))
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or threads))

    def admit(self, running: Running) -> None:
        """Hand the request to vLLM."""
        from vllm.inputs import tokens_input

        self._rouse()
        request = running.request
        name = next(self._ids)
        self._engine.add_request(
            name, tokens_input(list(request.prompt)), self._sampling(request), lora_request=self._adapters.request
        )
        self._running[name] = running

    def advance(self, running: Sequence[Running]) -> None:
        """One step of vLLM: one more token for each request whose prompt it has seen."""
        try:
            outputs = self._engine.step()
        except Exception:
            # vLLM goes on as if the step had been computed: what it now keeps of these prompts is no good.
            self._engine.abort_request(list(self._running))
            self._running.clear()
            _drop_cache(self._engine)
            raise
        for output in outputs:
            request = self._running[output.request_id]
            (reply,) = output.outputs
            request.token_ids += reply.token_ids
            request.logprobs += reply.logprobs.logprobs
            if output.finished:
                if reply.finish_reason not in ("stop", "length"):
                    raise EngineFault(f"vLLM ended a request: {reply.finish_reason}")
                request.finish = reply.finish_reason
                del self._running[output.request_id]

    def drop(self, running: Running) -> None:
        """Have vLLM give the request up."""
        for name in [name for name, other in self._running.items() if other is running]:
            del self._running[name]
            self._engine.abort_request([name])

    def forget(self, trajectory: str) -> None:
        """Nothing to do: vLLM drops what was used longest ago when it needs the memory."""

    def adapt(self, policy: Policy) -> None:
        """Go over to the policy's adapter."""
        self._rouse()
        self._adapters.load(policy)

    def sleep(self) -> None:
        """Have vLLM keep the weights in the CPU's memory, and drop all keys and values."""
        if vllm_is_for_cpus() or self._asleep:
            return
        _drop_cache(self._engine)
        self._engine.sleep(1)
        self._asleep = True

    def _rouse(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def close(self) -> None:
        """Free the model, and all that would keep another from being opened in this process."""
        self._engine.engine_core.shutdown()
        del self._engine, self._adapters

    def _sampling(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        vocabulary = self._engine.model_config.get_vocab_size()
        return SamplingParams(
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            max_tokens=request.sampling.max_tokens,
            seed=request.seed,
            stop_token_ids=[token for token in sorted(request.stop) if 0 <= token < vocabulary],
            ignore_eos=True,  # it stops at the tokens asked for and at no other
            logprobs=0,  # that of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,  # so that an aborted request has what it got so far
        )


class _Adapters(Protocol):
    """How an adapter reaches the model; `request` goes with every request to vLLM."""

    request: Any

    def load(self, policy: Policy) -> None:
        """Go over to the policy's adapter."""
        ...


class _Merged:
    """Adapters merged into the weights."""

    request = None

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def load(self, policy: Policy) -> None:
        """Merge the adapter, and put the merged weights in the place of those before."""
        weights = load_model(policy, self._engine.model_config.dtype, "cpu", attention="eager").state_dict()
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
        _drop_cache(self._engine)


class _LoraRequests:
    """Adapters beside the weights, each under a name and number of its own."""

    def __init__(self, engine: Any) -> None:
        self.request: Any = None
        self._engine = engine
        self._numbers = count(1)

    def load(self, policy: Policy) -> None:
        """Load the adapter beside the weights; the one before is removed."""
        from vllm.lora.request import LoRARequest

        new = None
        if policy.adapter is not None:
            number = next(self._numbers)
            new = LoRARequest(f"adapter-{number}", number, str(policy.adapter))
            try:
                self._engine.add_lora(new)
            except (ValueError, RuntimeError, OSError, KeyError) as error:
                raise InputError(f"--adapter {policy.adapter}: vLLM cannot serve it ({_first_line(error)})") from error
        if self.request is not None:
            self._engine.remove_lora(self.request.lora_int_id)
        self.request = new


def _open(policy: Policy, precision: str, lora: bool, lora_rank: int | None) -> Any:
    """vLLM's engine with the base model loaded."""
    os.environ.update(ENVIRONMENT)  # it is read when vLLM is imported
    import torch
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    settings: dict[str, Any] = {}
    if vllm_is_for_cpus():
        settings |= {"enforce_eager": True, "block_size": CPU_BLOCK, "kv_cache_memory_bytes": _cache_bytes()}
        # vLLM takes a number back from a request's random numbers after each part of its prompt, which fails on a CPU.
        settings |= {"enable_chunked_prefill": False}
    else:
        settings["enable_sleep_mode"] = True  # a learner may need the same GPU
    if lora:
        settings |= {"enable_lora": True, "max_lora_rank": _lora_rank(policy, lora_rank)}
    arguments = EngineArgs(
        model=policy.model,
        dtype=precision,
        max_model_len=-1,  # what the model can, or what memory for keys and values can hold if that is less
        skip_tokenizer_init=True,
        generation_config="vllm",  # no stop tokens or sampling settings of the model's own
        logprobs_mode="processed_logprobs",  # of the distribution sampled from
        enable_prefix_caching=True,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        use_tqdm_on_load=False,
        **settings,
    )
    set_num_threads, hook, preload = torch.set_num_threads, sys.excepthook, os.environ.get("LD_PRELOAD")
    try:
        return LLMEngine.from_engine_args(arguments, UsageContext.LLM_CLASS)
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        raise InputError(
            f"--model {policy.name}: vLLM cannot load it ({_first_line(error)}); try --engine transformers"
        ) from error
    finally:
        # vLLM takes these for a process of its own; the rest of this one needs them.
        torch.set_num_threads, sys.excepthook = set_num_threads, hook
        os.environ.pop("LD_PRELOAD", None)
        if preload is not None:
            os.environ["LD_PRELOAD"] = preload


def _drop_cache(engine: Any) -> None:
    if not engine.reset_prefix_cache():
        raise EngineFault("vLLM will not drop the keys and values that it keeps")


@contextmanager
def _silence() -> Iterator[None]:
    """Keep what is written to stdout and stderr off the screen, by C++ libraries too."""
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    try:
        for stream in kept:
            os.dup2(nowhere, stream)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)


def _cache_bytes() -> int:
    import psutil

    return min(KV_MOST, int(KV_SHARE * psutil.virtual_memory().available))


def _lora_rank(policy: Policy, later: int | None) -> int:
    """The rank to reserve space for. Raises `InputError` where it is more than vLLM can."""
    rank = max(LEAST_LORA_RANK, later or 0)
    if policy.adapter is not None:
        rank = max(rank, json.loads((policy.adapter / "adapter_config.json").read_text())["r"])
    for possible in LORA_RANKS:
        if rank <= possible:
            return possible
    raise InputError(f"LoRA rank {rank} is more than vLLM serves ({LORA_RANKS[-1]}); take less, or another engine")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
