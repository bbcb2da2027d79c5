"""Parts that are dear to make and shared by many tests: the small policy and its model, games."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from calibration_runs import Run

import sr
from collect.games import Game, find_games
from collect.policy import Policy, find_policy, load_tokenizer

if TYPE_CHECKING:
    import torch

SHARED = Path(__file__).parents[2] / "shared"
GENERATED = {"train": 6, "valid_seen": 2, "valid_unseen": 2}


@pytest.fixture(scope="session")
def small_policy() -> Policy:
    """The default small model with its adapter."""
    return find_policy("SmolLM2-135M-Instruct")


@pytest.fixture(scope="session")
def bare(small_policy: Policy) -> Policy:
    """The default small model without its adapter."""
    return Policy(small_policy.name, small_policy.model)


@pytest.fixture(scope="session")
def reference(bare: Policy) -> "torch.nn.Module":
    """That model in fp32, for a plain forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(bare.model, dtype=torch.float32).eval()
    return model


@pytest.fixture(scope="session")
def opening(bare: Policy) -> tuple[int, ...]:
    """A prompt as token ids, longer than the blocks in which vllm keeps keys and values."""
    text = (
        "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, a drawer 1, a drawer "
        "2, a drawer 3, a garbagecan 1, a laundryhamper 1, a safe 1, a shelf 1, and a sidetable 1. Your task is to: "
        "put a pen in the garbagecan."
    )
    ids = tuple(load_tokenizer(bare)(text)["input_ids"])
    assert len(ids) > 64
    return ids


@pytest.fixture(scope="session")
def real_game() -> Path:
    """A game of ALFWorld's own data set: heat a potato and put it in the sink basin."""
    path = SHARED / "alfworld" / "game.tw-pddl"
    if not path.is_file():
        pytest.skip("ALFWorld's own game is not beside this repository (../shared/alfworld)")
    return path


@pytest.fixture(scope="session")
def games_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated games, one of each task type in train, two in each other split; about 10 s, once."""
    from collect.generator import make_games

    root = tmp_path_factory.mktemp("games") / "root"
    make_games(root, GENERATED)
    return root


@pytest.fixture(scope="session")
def six_games(games_root: Path) -> list[Game]:
    """One generated game of each task type."""
    return find_games("train", games_root)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `sr …` in an empty folder; gives exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sr", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            sr.main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return run


@pytest.fixture
def calibrate(run: Run) -> Run:
    """Run `sr calibrate …` so."""

    def calibrate(*arguments: str | Path) -> tuple[int, str, str]:
        return run("calibrate", *arguments)

    return calibrate
