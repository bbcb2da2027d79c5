"""What tests of calibrate's commands share: runs whose failing groups are alike, and the released table."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import make_group

from collect.store import open_run
from collect.trajectory import Decision, Group

RESULTS = Path(__file__).parent.parent.parent / "shared" / "paper" / "results"
RELEASED = RESULTS / "group_signals_K10_K20.csv"
released = pytest.mark.skipif(
    not RELEASED.is_file(), reason="the paper's released tables are not beside the repository"
)

Run = Callable[..., tuple[int, str, str]]  # runs a command; exit code, standard output, standard error

ALIKE = ["look", "go to desk 1", "open drawer 1", "look", "inventory"]


def a_group(number: int, kind: str, decision: Decision | None = None) -> Group:
    """Three trajectories of five steps at a horizon of 6: failing groups repeat one another, others scatter."""
    rng = random.Random(number)
    actions = [list(ALIKE) for _ in range(3)]
    if kind != "fail":
        actions = [[f"go to shelf {rng.randint(1, 99)}" for _ in range(5)] for _ in range(3)]
    won = {"fail": [False] * 3, "mixed": [True, False, True], "succeed": [True] * 3}[kind]
    return make_group(rng, 3, 6, number=number, actions=actions, won=won, decision=decision)


def write_run(folder: Path, kinds: list[str], configuration: dict[str, Any] | None = None) -> list[Group]:
    groups = [a_group(number, kind) for number, kind in enumerate(kinds)]
    with open_run(folder, configuration or {"model": "tiny", "prompt": "act", "adapter": None}, {}) as run:
        for group in groups:
            run.add(group)
    return groups


KINDS = ["fail"] * 12 + ["mixed"] * 8 + ["succeed"] * 4
MANY = ["fail"] * 24 + ["mixed"] * 20 + ["succeed"] * 8
KINDS_OF_GATE = ("threshold", "either", "sequential", "learned")


def cells(out: str) -> list[list[str]]:
    """The rows of the printed table: fields of two or more spaces apart, where the first is a number."""
    rows = [[field.strip() for field in line.split("  ") if field.strip()] for line in out.splitlines()]
    return [row for row in rows if row and row[0].isdecimal()]


def without_interval(cell: str) -> str:
    return cell.split(" ")[0]


def gate_rows(out: str) -> list[list[str]]:
    """The rows of the table of gates."""
    rows = [[field.strip() for field in line.split("  ") if field.strip()] for line in out.splitlines()]
    return [row for row in rows if row and row[0] in KINDS_OF_GATE]
