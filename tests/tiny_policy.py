"""A language model so small that a training run of it takes seconds, which has half learned a few games by heart."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from collect.environment import open_environments
from collect.games import Game, read_game_file
from collect.prompt import Prompt
from train.warmstart import Lesson, encode


def make_tiny_policy(tokenizer_of: str, games: Sequence[Game], folder: Path, updates: int = 60) -> Path:
    """Two layers, the real tokenizer, and so many updates on the games' walkthroughs, in prompt style `act`."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.get_input_embeddings().requires_grad_(False)  # random ones will do, and their gradient is dear
    prompt = Prompt(tokenizer, "act", show_commands=False)
    lessons = [encode(lesson, prompt, tokenizer, 4096) for lesson in asyncio.run(_walk(games))]
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=5e-3, weight_decay=0.0, fused=True)
    for _ in range(updates):
        loss = sum(_loss(model, *lesson) for lesson in lessons) / len(lessons)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


async def _walk(games: Sequence[Game]) -> list[Lesson]:
    environments, lessons = open_environments("compiled", print), []
    for game in games:
        exchanges = []
        async with environments.open(game.path, 1) as environment:
            observation = await environment.reset(0)
            for command in read_game_file(game.path).walkthrough or ():
                exchanges.append((observation.text, command))
                observation = await environment.step(0, command)
        lessons.append(Lesson(game.id, tuple(exchanges)))
    return lessons


def _loss(model: Any, ids: list[int], mask: list[bool]) -> Any:
    said = torch.tensor([i for i, policy in enumerate(mask) if policy])
    logits = model(input_ids=torch.tensor([ids]), logits_to_keep=said - 1, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids)[said])
