"""The warm start: lessons as a rollout would show them, and the whole recipe on two games."""

import json
from pathlib import Path

import pytest
import torch
from user import one_line, sr

from collect.games import Game
from collect.policy import Policy, find_policy, load_model, load_tokenizer
from collect.prompt import SYSTEM, Prompt
from train.warmstart import Lesson, encode, read_lessons, solve, write_lessons

LESSON = Lesson("game", (("You see a bed 1.", "go to bed 1"), ("You arrive at bed 1.", "look"), ("Nothing.", "look")))


def test_a_lesson_is_the_chat_template_with_the_expert_as_assistant(small_policy: Policy) -> None:
    tokenizer = load_tokenizer(small_policy)
    ids, mask = encode(LESSON, Prompt(tokenizer, "act", show_commands=False), tokenizer, max_tokens=1000)
    messages = [{"role": "system", "content": SYSTEM["act"]}]
    for said, command in LESSON.exchanges:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": command}]
    text = tokenizer.apply_chat_template(messages, tokenize=False).removesuffix("\n")
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    learned = [token for token, expert in zip(ids, mask, strict=True) if expert]
    assert tokenizer.decode(learned) == "go to bed 1<|im_end|>look<|im_end|>look<|im_end|>"


def test_a_long_lesson_keeps_the_whole_steps_that_fit(small_policy: Policy) -> None:
    tokenizer = load_tokenizer(small_policy)
    prompt = Prompt(tokenizer, "act", show_commands=False)
    whole, _ = encode(LESSON, prompt, tokenizer, max_tokens=1000)
    short, mask = encode(LESSON, prompt, tokenizer, max_tokens=len(whole) - 1)
    assert short == whole[: len(short)]
    learned = [token for token, expert in zip(short, mask, strict=True) if expert]
    assert tokenizer.decode(learned) == "go to bed 1<|im_end|>look<|im_end|>"
    assert mask[-1]


def test_the_expert_solves_games_and_its_lessons_survive_being_written(six_games: list[Game], tmp_path: Path) -> None:
    lessons = solve(six_games[:2], 50, 2, lambda done, total, note="": None)
    assert {lesson.game_id for lesson in lessons} == {game.id for game in six_games[:2]}
    write_lessons(lessons, tmp_path / "lessons.jsonl")
    assert read_lessons(tmp_path / "lessons.jsonl") == lessons


def test_the_recipe_makes_an_adapter_that_plays_goes_on_and_refuses_another_recipe(tmp_path: Path) -> None:
    out = tmp_path / "warm"
    done = sr("warmstart", out, "--games", 2, "--quiet")
    assert done.returncode == 0, done.stderr
    policy = find_policy("SmolLM2-135M-Instruct", str(out / "adapter"))
    adapted = load_model(policy, torch.float32, "cpu", "sdpa").state_dict()
    bare = load_model(Policy(policy.name, policy.model), torch.float32, "cpu", "sdpa").state_dict()
    assert any(not torch.equal(adapted[name], bare[name]) for name in bare)
    assert json.loads((out / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == policy.name
    assert "`sr warmstart --games 2 --seed 2026`" in (out / "adapter" / "README.md").read_text()

    weights = (out / "adapter" / "adapter_model.safetensors").read_bytes()
    assert sr("warmstart", out, "--games", 2, "--quiet").returncode == 0
    assert (out / "adapter" / "adapter_model.safetensors").read_bytes() == weights

    refused = sr("warmstart", out, "--games", 3, "--quiet")
    assert refused.returncode == 2
    assert "holds a warm start by another recipe" in one_line(refused.stderr)


@pytest.mark.parametrize("games", [0, -1])
def test_no_games_are_refused(games: int, tmp_path: Path) -> None:
    assert sr("warmstart", tmp_path / "warm", "--games", games).returncode == 2
    assert list(tmp_path.iterdir()) == []
