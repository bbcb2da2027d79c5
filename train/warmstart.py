"""The recipe of the default small policy: supervised learning from an expert that sees only the text.

Games of the train split are made, an expert that searches in a fixed order plays them on the real engine, and a LoRA
adapter learns its commands, token for token as a rollout would show them. The aim is not a strong policy but one that
an RL run can start from: it wins some games and loses some, and agrees with itself often enough that some groups have
zero variance.
"""

import asyncio
import json
import os
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collect.environment import Environments, open_environments
from collect.errors import EnvironmentFault, InputError
from collect.expert import Expert
from collect.files import fsync, replacing
from collect.games import Game, task_of
from collect.generator import make_games
from collect.policy import Policy, load_tokenizer
from collect.progress import Update
from collect.prompt import Prompt
from collect.recipe import Recipe as GameRecipe

Watch = Callable[[str, str], AbstractContextManager[Update]]  # (label, unit) to something that shows progress


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what the adapter learns. The seed also seeds the games."""

    games: int = 400
    horizon: int = 50
    max_tokens: int = 900
    rank: int = 16
    alpha: int = 32
    learning_rate: float = 1e-3
    warmup: float = 0.05
    batch_size: int = 2
    epochs: int = 1
    seed: int = 2026


@dataclass(frozen=True, slots=True)
class Lesson:
    """A solved game as (what the game said, the expert's command) pairs, in order."""

    game_id: str
    exchanges: tuple[tuple[str, str], ...]


def warm_start(policy: Policy, recipe: Recipe, out: Path, progress: Watch) -> Path:
    """The whole recipe in the folder `out`: games, lessons, adapter; returns the adapter's folder.

    What an earlier call with the same recipe finished is kept. Raises `InputError` where `out` holds anything else.
    """
    _claim(policy, recipe, out)
    adapter, lessons_file = out / "adapter", out / "lessons.jsonl"
    if adapter.exists():
        return adapter
    if not lessons_file.exists():
        with progress(f"making {recipe.games} games in {out / 'games'}", "games") as update:
            games = make_games(out / "games", {"train": recipe.games}, GameRecipe(seed=recipe.seed), progress=update)
        with progress("having the expert play them", "games") as update:
            write_lessons(solve(games, recipe.horizon, os.cpu_count() or 1, update), lessons_file)
    lessons = read_lessons(lessons_file)
    unfinished = out / ".adapter"
    with progress(f"learning from {len(lessons)} solved games", "updates") as update:
        loss = train(policy, lessons, recipe, unfinished, update)
    (unfinished / "README.md").write_text(_card(policy, recipe, len(lessons), loss))
    for file in unfinished.iterdir():
        fsync(file)
    unfinished.rename(adapter)
    fsync(out)
    return adapter


def _claim(policy: Policy, recipe: Recipe, out: Path) -> None:
    """Write the recipe into a new or empty folder, or find the same there."""
    note = out / "recipe.json"
    asked = {"model": policy.name, **asdict(recipe)}
    if note.is_file():
        if json.loads(note.read_text()) != asked:
            raise InputError(f"{out}: holds a warm start by another recipe ({note}); give another folder")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: not empty and not a warm start; give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    with replacing(note) as temporary:
        temporary.write_text(json.dumps(asked, indent=1) + "\n")


def _card(policy: Policy, recipe: Recipe, lessons: int, loss: float) -> str:
    settings = "\n".join(f"| {name} | {value} |" for name, value in asdict(recipe).items())
    return f"""# A LoRA adapter for {policy.name}, for ALFWorld text games

Made by `sr warmstart --games {recipe.games} --seed {recipe.seed}`: supervised learning on {lessons} generated games of
the train split, as solved by an expert that sees only the text and searches receptacles in a fixed order. Prompt style
`act`, commands not shown. Loss over the last tenth of the updates: {loss:.3f} nats a token, on the expert's tokens.

| setting | value |
| --- | --- |
{settings}
"""


def solve(games: Sequence[Game], horizon: int, workers: int, progress: Update) -> list[Lesson]:
    """Have the expert play every game on the real engine; games it does not solve within `horizon` are left out."""
    return asyncio.run(_solve_all(games, horizon, workers, progress))


async def _solve_all(games: Sequence[Game], horizon: int, workers: int, progress: Update) -> list[Lesson]:
    environments = open_environments("compiled", print)
    slots = asyncio.Semaphore(workers)
    done = 0

    async def solve_one(game: Game) -> Lesson | None:
        nonlocal done
        async with slots:
            try:
                return await _play(game, horizon, environments)
            except EnvironmentFault as fault:
                print(f"skipped {game.id}: {fault}")
                return None
            finally:
                done += 1
                progress(done, len(games))

    solved = await asyncio.gather(*(solve_one(game) for game in games))
    return [lesson for lesson in solved if lesson is not None]


async def _play(game: Game, horizon: int, environments: Environments) -> Lesson | None:
    expert = Expert(task_of(game))
    exchanges = []
    async with environments.open(game.path, 1) as environment:
        observation = await environment.reset(0)
        for _ in range(horizon):
            command = expert.act(observation.text)
            exchanges.append((observation.text, command))
            observation = await environment.step(0, command)
            if observation.won:
                return Lesson(game.id, tuple(exchanges))
    return None


def write_lessons(lessons: Sequence[Lesson], path: Path) -> None:
    """One lesson a line, as JSON."""
    with replacing(path) as temporary:
        temporary.write_text("".join(json.dumps(asdict(lesson)) + "\n" for lesson in lessons))


def read_lessons(path: Path) -> list[Lesson]:
    """What `write_lessons` wrote."""
    rows = [json.loads(line) for line in path.read_text().split("\n") if line]
    return [Lesson(row["game_id"], tuple((said, command) for said, command in row["exchanges"])) for row in rows]


def encode(lesson: Lesson, prompt: Prompt, tokenizer: Any, max_tokens: int) -> tuple[list[int], list[bool]]:
    """Token ids of the lesson as a rollout would build them, and which of them the expert said.

    Whole steps only, as many as fit into `max_tokens` (the first always).
    """
    stop = tokenizer.eos_token_id
    ids: list[int] = []
    mask: list[bool] = []
    reply: list[int] = []
    for said, command in lesson.exchanges:
        shown = prompt.turn(reply, said, ()) if ids else prompt.opening(said, ())
        reply = [*tokenizer(command, add_special_tokens=False)["input_ids"], stop]
        if ids and len(ids) + len(shown) + len(reply) > max_tokens:
            break
        ids += [*shown, *reply]
        mask += [False] * len(shown) + [True] * len(reply)
    return ids, mask


def train(policy: Policy, lessons: Sequence[Lesson], recipe: Recipe, out: Path, progress: Update) -> float:
    """Fit a LoRA adapter to the lessons and save it in `out`; returns the last tenth's mean loss, in nats a token."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, get_linear_schedule_with_warmup

    torch.set_flush_denormal(True)  # a policy that grows sure makes numbers that CPUs are slow at
    torch.manual_seed(recipe.seed)
    tokenizer = load_tokenizer(policy)
    prompt = Prompt(tokenizer, "act", show_commands=False)
    examples = [encode(lesson, prompt, tokenizer, recipe.max_tokens) for lesson in lessons]
    model = AutoModelForCausalLM.from_pretrained(policy.model, dtype=torch.bfloat16, attn_implementation="sdpa")
    lora = LoraConfig(r=recipe.rank, lora_alpha=recipe.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=0.0)
    batches = list(_batches(len(examples), recipe))
    schedule = get_linear_schedule_with_warmup(optimizer, int(recipe.warmup * len(batches)), len(batches))
    losses = []
    for number, batch in enumerate(batches, start=1):
        tokens = sum(sum(examples[i][1]) for i in batch)
        total = 0.0
        for i in batch:
            loss = _loss(model, *examples[i]) / tokens
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(total)
        progress(number, len(batches))
    _save(model, policy, out)
    tail = losses[-max(1, len(losses) // 10) :]
    return sum(tail) / len(tail)


def _batches(count: int, recipe: Recipe) -> list[list[int]]:
    shuffle = random.Random(recipe.seed)
    batches = []
    for _ in range(recipe.epochs):
        order = list(range(count))
        shuffle.shuffle(order)
        batches += [order[i : i + recipe.batch_size] for i in range(0, count, recipe.batch_size)]
    return batches


def _loss(model: Any, ids: list[int], mask: list[bool]) -> Any:
    """Sum of the negative log-likelihoods of the expert's tokens, each predicted from all tokens before it."""
    import torch

    said = torch.tensor([i for i, policy in enumerate(mask) if policy])
    logits = model(input_ids=torch.tensor([ids]), logits_to_keep=said - 1, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(logits.float(), torch.tensor(ids)[said], reduction="sum")


def _save(model: Any, policy: Policy, out: Path) -> None:
    """Write the adapter in bf16, which halves it and loses nothing that the bf16 model would keep."""
    import torch

    model.to(torch.bfloat16)
    model.peft_config["default"].base_model_name_or_path = policy.name  # not a path of the machine it was trained on
    model.save_pretrained(out, save_embedding_layers=False)  # what else it would do is look for the model on a hub
