"""A model small enough to be computed by hand, and batches for it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from collect.policy import Policy
from train.batch import Example
from train.layout import Layout
from train.learner import Learner, LearnerSettings

VOCABULARY = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # else the logits of so small a model are all but equal
}
TEMPERATURE = 0.7
HERE = Layout("cpu", shared=False)
RANK, ALPHA = 4, 12


def tiny_base(folder: Path) -> Policy:
    """A llama with random weights, without an adapter."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    return Policy("tiny", str(folder))


def tiny_policy(folder: Path) -> Policy:
    """That llama with an adapter that is not zero, as a fresh one would be."""
    base = tiny_base(folder / "base")
    learner = Learner(base, settings_of(rank=RANK, alpha=ALPHA), HERE)
    learner.save_adapter(folder / "adapter")
    file = folder / "adapter" / "adapter_model.safetensors"
    torch.manual_seed(1)
    save_file({n: torch.randn_like(w) * 0.1 for n, w in load_file(file).items()}, file, metadata={"format": "pt"})
    return replace(base, adapter=folder / "adapter")


def settings_of(**changes: Any) -> LearnerSettings:
    """Settings in fp32, of a kind that clips nothing."""
    defaults: dict[str, Any] = {
        "temperature": TEMPERATURE,
        "dtype": "fp32",
        "max_gradient_norm": 1e9,
        "learning_rate": 1e-3,
    }
    return LearnerSettings(**defaults | changes)


def make_example(rng: random.Random, turns: int, advantage: float, group: str = "g") -> Example:
    """A conversation of some turns, of 1 to 9 read and 1 to 4 sampled tokens each, then perhaps something read."""
    ids: list[int] = []
    mask: list[bool] = []
    for _ in range(turns):
        read, said = rng.randint(1, 9), rng.randint(1, 4)
        ids += [rng.randrange(VOCABULARY) for _ in range(read + said)]
        mask += [False] * read + [True] * said
    tail = rng.randint(0, 3)
    ids += [rng.randrange(VOCABULARY) for _ in range(tail)]
    mask += [False] * tail
    # About what a random policy would have given, so that some importance weights meet the cap and some do not.
    logprobs = [-rng.uniform(3, 6) for _ in range(sum(mask))]
    return Example(group, tuple(ids), tuple(mask), tuple(logprobs), advantage)


def make_batch(seed: int = 0, advantages: Sequence[float] = (1.5, -0.5, 0.0, -1.0, 0.25, 0.0)) -> list[Example]:
    """Examples of 1 to 8 turns, one for each advantage."""
    rng = random.Random(seed)
    return [make_example(rng, rng.randint(1, 8), advantage) for advantage in advantages]


def plain_logprobs(model: Any, example: Example, temperature: float = TEMPERATURE) -> torch.Tensor:
    """Log-probability of each sampled token, from one plain pass over the conversation with all its logits."""
    logits = model(input_ids=torch.tensor([example.token_ids]), use_cache=False).logits[0]
    said = torch.tensor([i for i, sampled in enumerate(example.policy_mask) if sampled], dtype=torch.long)
    everything = torch.log_softmax(logits / temperature, dim=-1)
    return everything[said - 1, torch.tensor(example.token_ids)[said]]


def gradient(learner: Learner, batch: Sequence[Example], folder: Path) -> dict[str, torch.Tensor]:
    """The gradient of a learner's first update, by weight: AdamW's first moment is a tenth of it then."""
    assert learner.number == 0
    assert learner.update(batch).skipped is None
    learner.save_state(folder)
    moments = load_file(folder / "state.safetensors")
    return {name.removeprefix("exp_avg."): m * 10 for name, m in moments.items() if name.startswith("exp_avg.")}
