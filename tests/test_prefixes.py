import math
from collections import deque
from typing import Any

import numpy as np
import pytest
from gates import make_gate

from calibrate.gate import Gate
from calibrate.prefixes import Prefix
from calibrate.rules import Sequential, Stage
from collect.errors import InputError

ACTIONS = ["look", "go", "take"]


def reading(signal: str) -> Gate:
    return make_gate(signal=signal, threshold=-0.5 if signal == "mean_logprob" else 0.5)


@pytest.mark.parametrize(
    ("signal", "fields", "told"),
    [
        (
            "mean_logprob",
            {"logprobs": [-0.1, math.nan, -0.1], "tokens": [1, 1, 1]},
            "logprobs is not a finite number of at most 0",
        ),
        (
            "mean_logprob",
            {"logprobs": [-0.1, None, -0.1], "tokens": [1, 1, 1]},
            "logprobs is not a finite number of at most 0",
        ),
        (
            "mean_logprob",
            {"logprobs": [-0.1] * 3, "tokens": [1, -1, 1]},
            "tokens is not a whole number from 0 to 2147483647",
        ),
        ("mean_logprob", {"logprobs": [-0.1] * 3}, "it has 0 tokens for 3 actions"),
        ("repetition", {"observations": "abc"}, "its observations are of type str"),
        ("commands_reached", {"commands": ["look", "go", "take"]}, "commands is not a list or set of texts"),
        ("refused_share", {"refused": [False, "no", False]}, "refused is not True or False"),
    ],
)
def test_what_is_read_of_a_prefix_must_be_of_its_kind(signal: str, fields: dict[str, Any], told: str) -> None:
    gate = make_gate(signal=signal, threshold=-0.5 if signal == "mean_logprob" else 0.5)
    with pytest.raises(InputError, match=told):
        gate.decide([Prefix(["look", "go", "take"], **fields)] * 3, eligible=True)


def test_an_observation_after_the_last_action_is_refused_where_it_would_count() -> None:
    gate = make_gate(signal="repetition", threshold=0.5)
    running, over = Prefix(["a", "b", "c"], ["v", "x", "y", "z"]), Prefix(["a"], ["x", "y"])
    with pytest.raises(InputError, match="2 observations for 1 actions"):
        gate.decide([running, running, over], eligible=True)
    assert gate.decide([running] * 3, eligible=True).score == 0.0


@pytest.mark.parametrize(
    "logprobs",
    [
        [0.1] * 3,  # -log p
        [-0.1, True, -0.1],
        [False] * 3,
        [-0.1, 10**400, -0.1],
        [-0.1, -(10**400), -0.1],
        [-0.1, -math.inf, -0.1],
        [-0.1, math.inf, -0.1],
    ],
)
def test_what_is_no_log_probability_is_refused_in_one_line(logprobs: list[Any]) -> None:
    wrong = Prefix(ACTIONS, logprobs=logprobs, tokens=[1, 1, 1])
    right = Prefix(ACTIONS, logprobs=[-0.1] * 3, tokens=[1, 1, 1])
    with pytest.raises(
        InputError, match=r"prefixes\[1\] .*logprobs is not a finite number of at most 0; give"
    ) as raised:
        reading("mean_logprob").decide([right, wrong, right], eligible=True)
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.float16, np.float32, float])
def test_a_log_probability_that_rounding_left_over_0_will_do(kind: type) -> None:
    group = [Prefix(ACTIONS, logprobs=[kind(2e-7), kind(0.0), kind(-0.6)], tokens=[1, 1, 1])] * 3
    assert reading("mean_logprob").decide(group, eligible=True).score == pytest.approx(-0.2, rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "logprobs", "told"),
    [
        ([0, 0, 0], [-0.1] * 3, "its tokens are all 0; give the number"),
        ([0, 0, 0], [0.0] * 3, "its tokens are all 0; give the number"),
        ([2, 0, 2], [-0.1] * 3, "a step of 0 tokens has a log-probability; give the number"),
        ([2, True, 2], [-0.1] * 3, "tokens is not a whole number from 0 to 2147483647"),
        ([2, 10**400, 2], [-0.1] * 3, "tokens is not a whole number from 0 to 2147483647"),
    ],
)
def test_numbers_of_tokens_that_cannot_be_are_refused(tokens: list[Any], logprobs: list[float], told: str) -> None:
    with pytest.raises(InputError, match=rf"reads tokens, and prefixes\[0\] will not do: .*{told}"):
        reading("mean_logprob").decide([Prefix(ACTIONS, logprobs=logprobs, tokens=tokens)] * 3, eligible=True)


def test_a_reply_without_a_token_and_a_trajectory_without_a_step_will_do() -> None:
    one, none = Prefix(ACTIONS, logprobs=[-0.3, 0.0, -0.3], tokens=[1, 0, 2]), Prefix([])
    assert reading("mean_logprob").decide([one, one, none], eligible=True).score == pytest.approx(-0.2)


@pytest.mark.parametrize(
    "commands",
    [
        [iter(["look"])] * 3,
        [(command for command in ["look"]), ["look"], ["look"]],
        [["look"], [["a"]], ["look"]],
        [["look"], ["go", 7], ["look"]],
        [["look"], "go", ["look"]],
        [["look"], None, ["look"]],
        [["look"], b"go", ["look"]],
    ],
)
def test_commands_are_collections_of_text(commands: list[Any]) -> None:
    with pytest.raises(InputError, match="one of its commands is not a list or set of texts; give a list or set"):
        reading("commands_reached").decide([Prefix(ACTIONS, commands=commands)] * 3, eligible=True)


def test_the_second_decision_of_a_group_reads_the_same_commands_as_the_first() -> None:
    rule = Sequential(signal="commands_reached", stages=(Stage(step=2, threshold=0.1), Stage(step=3, threshold=0.9)))
    commands = [{"look"}, ("look", "go"), frozenset({"take"})]
    group, gate = [Prefix(ACTIONS, commands=commands)] * 3, make_gate(rule=rule)
    assert [gate.decide(group, eligible=True, step=step).score for step in (2, 3, 3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        (deque(ACTIONS), "its actions are of type deque; give a list"),
        (Prefix(ACTIONS, observations=deque("xyz")), "its observations are of type deque; give a list"),
        (Prefix(b"abc"), "one of its actions is not text"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_list_is_refused_in_one_line(prefix: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        reading("repetition").decide([prefix] * 3, eligible=True)
