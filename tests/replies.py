"""Asking an engine, and what a plain forward pass of transformers says of its replies."""

import asyncio

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from collect.engine import Completion, Engine, Request, Sampling
from collect.policy import Policy

NEVER = frozenset({-1})  # no token stops the reply


def ask(engine: Engine, *requests: Request) -> list[Completion]:
    async def gather() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    return asyncio.run(gather())


def request(prompt: tuple[int, ...], seed: int = 1, name: str = "t", **sampling: float) -> Request:
    settings = {"temperature": 1.0, "max_tokens": 12, **sampling}
    return Request(name, prompt, NEVER, seed, Sampling(**settings))  # type: ignore[arg-type]


@torch.inference_mode()
def expected_logits(model: torch.nn.Module, prompt: tuple[int, ...], reply: tuple[int, ...]) -> torch.Tensor:
    """Logits (reply, vocabulary) from which a plain forward pass would sample each token of the reply."""
    logits: torch.Tensor = model(torch.tensor([[*prompt, *reply]])).logits[0]
    return logits[len(prompt) - 1 : -1].double()


def expected_logprobs(model: torch.nn.Module, prompt: tuple[int, ...], reply: tuple[int, ...], t: float) -> list[float]:
    table = torch.log_softmax(expected_logits(model, prompt, reply) / t, dim=-1)
    return [float(row[token]) for row, token in zip(table, reply, strict=True)]


def adapted_logprobs(policy: Policy, prompt: tuple[int, ...], reply: tuple[int, ...]) -> list[float]:
    """The same at temperature 1, of the policy's model with its adapter beside it."""
    base = AutoModelForCausalLM.from_pretrained(policy.model, dtype=torch.float32)
    return expected_logprobs(PeftModel.from_pretrained(base, policy.adapter).eval(), prompt, reply, t=1.0)
