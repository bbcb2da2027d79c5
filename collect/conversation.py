"""A conversation with a model as steps: every turn of the assistant is one.

Trainers for agents of any kind log conversations, not commands. What the policy read before a turn is the step's
observation, and its action is what the turn asks for: a call of a tool, what stands between <action> tags or after
"Action:", or, where there is none of these, all that it says.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from collect.logged import LoggedStep
from collect.prompt import named_action

TOOL_CALL, TAG, LABEL, WHOLE = "tool calls", "<action> tags", '"Action:" lines', "whole replies"
_ACTION_TAG = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_TOOL_CALL_TAG = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
# How chat templates in the manner of ChatML begin a turn, with their special tokens or, decoded without, as bare roles.
_TURN = re.compile(r"(?:^|\n)(?:<\|im_start\|>)?(system|user|assistant|tool)\n")
_END_OF_TURN = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said; `calls` are the tools that the assistant called, as (name, arguments)."""

    role: str
    text: str
    calls: tuple[tuple[str, Any], ...] = ()
    logprobs: tuple[float, ...] | None = None


def steps_of(turns: Iterable[Turn], found_by: Counter[str]) -> tuple[LoggedStep, ...]:
    """The steps of a conversation; counts in `found_by` how each action was found.

    The system's turns are no observation. An observation of several turns (such as answers of several tools) is their
    text, one below the other; it is empty where the assistant spoke twice in a row.
    """
    steps, read = [], list[str]()
    for turn in turns:
        if turn.role != "assistant":
            read += [] if turn.role == "system" else [turn.text]
            continue
        action, how = action_in(turn)
        found_by[how] += 1
        steps.append(LoggedStep(action, "\n".join(read), turn.text, logprobs=turn.logprobs))
        read = []
    return tuple(steps)


def action_in(turn: Turn) -> tuple[str, str]:
    """The action that a turn of the assistant asks for, and how it was found."""
    calls = [*turn.calls, *_calls_in(turn.text)]
    if calls:
        return "; ".join(f"{name}({_canonical(arguments)})" for name, arguments in calls), TOOL_CALL
    if tagged := _ACTION_TAG.findall(turn.text):
        return str(tagged[-1]).strip(), TAG
    if (named := named_action(turn.text)) is not None:
        return named, LABEL
    return " ".join(turn.text.split()), WHOLE


def turns_in(prompt: str, response: str) -> list[Turn]:
    """The turns of a conversation that was logged as text: the last one of the prompt, and those of the response.

    A response begins with the assistant. Turns are told apart by the template's own markers, or by the lines `user`,
    `assistant` and `tool` that are left of them when special tokens are not decoded; a response without any is one
    turn. Where a response ends before the assistant's last turn began, there is no such turn.
    """
    asked = [turn for turn in _split(prompt, "user") if turn.role != "assistant"]
    said = _split(response, "assistant")
    if len(said) > 1 and said[-1] == Turn("assistant", ""):
        said.pop()
    return [*asked[-1:], *said]


def _split(text: str, first: str) -> list[Turn]:
    pieces = _TURN.split(text)
    turns = [Turn(first, pieces[0]), *(Turn(role, said) for role, said in zip(pieces[1::2], pieces[2::2], strict=True))]
    stripped = [Turn(turn.role, turn.text.strip().removesuffix(_END_OF_TURN).strip()) for turn in turns]
    return [turn for turn in stripped if turn.text or turn.role == "assistant"]


def _calls_in(text: str) -> list[tuple[str, Any]]:
    """Tool calls that a model writes as JSON between tags; none unless every one of them can be read."""
    calls = []
    for written in _TOOL_CALL_TAG.findall(text):
        try:
            call = json.loads(written)
            calls.append((str(call["name"]), call.get("arguments")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []
    return calls


def _canonical(arguments: Any) -> str:
    """Arguments as text that is equal for equal ones: JSON with its keys in order; what is no JSON as it is."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return " ".join(str(arguments).split())
    return "" if arguments is None else json.dumps(arguments, sort_keys=True, ensure_ascii=False)
