import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collect.conversation import LABEL, TAG, TOOL_CALL, WHOLE, Turn, action_in, steps_of, turns_in


@pytest.mark.parametrize(
    ("said", "action", "how"),
    [
        ("Thought: a mug.\nAction: go to desk 1", "go to desk 1", LABEL),
        ("Action: look\nno:\n**action**: `inventory`", "inventory", LABEL),
        ("<think>Action: no</think><action>look</action> or\n<ACTION> take mug 1\n</ACTION>", "take mug 1", TAG),
        (
            '<tool_call>\n{"name": "go", "arguments": {"to": "desk", "n": 1}}\n</tool_call>',
            'go({"n": 1, "to": "desk"})',
            TOOL_CALL,
        ),
        ("<tool_call>go to desk</tool_call>", "<tool_call>go to desk</tool_call>", WHOLE),
        ("  I would\n rather\u2028not. ", "I would rather not.", WHOLE),
        ("", "", WHOLE),
    ],
)
def test_the_action_of_a_reply(said: str, action: str, how: str) -> None:
    assert action_in(Turn("assistant", said)) == (action, how)


def test_calls_of_tools_are_the_action_whatever_is_said_besides() -> None:
    calls = (("look", '{"b": 1, "a": "é"}'), ("wait", None), ("shout", "no JSON  at all"))
    action, how = action_in(Turn("assistant", "Action: none", calls))
    assert (action, how) == ('look({"a": "é", "b": 1}); wait(); shout(no JSON at all)', TOOL_CALL)


@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_equal_arguments_are_one_action_in_whatever_order_and_form(arguments: dict[str, object]) -> None:
    backwards = dict(reversed(arguments.items()))
    forms = [arguments, json.dumps(backwards, indent=1), json.dumps(arguments, ensure_ascii=False)]
    assert len({action_in(Turn("assistant", "", (("f", form),)))[0] for form in forms}) == 1


def test_a_step_is_what_the_assistant_said_to_all_that_came_since_its_last_turn() -> None:
    found = Counter[str]()
    turns = [
        Turn("system", "Act."),
        Turn("user", "Put it there."),
        Turn("assistant", "Action: look", logprobs=(-0.5, -0.25)),
        Turn("tool", "one"),
        Turn("tool", "two"),
        Turn("assistant", "go on"),
        Turn("assistant", "and on"),
        Turn("user", "unanswered"),
    ]
    steps = steps_of(turns, found)
    assert [(s.observation, s.reply, s.action, s.logprobs) for s in steps] == [
        ("Put it there.", "Action: look", "look", (-0.5, -0.25)),
        ("one\ntwo", "go on", "go on", None),
        ("", "and on", "and on", None),
    ]
    assert found == {LABEL: 1, WHOLE: 2}


@pytest.mark.parametrize(("opening", "closing"), [("", ""), ("<|im_start|>", "<|im_end|>")])
def test_turns_are_found_with_and_without_the_special_tokens(opening: str, closing: str) -> None:
    def said(role: str, text: str) -> str:
        return f"{opening}{role}\n{text}{closing}\n"

    prompt = said("system", "Act.") + said("user", "Put it there.") + f"{opening}assistant\n"
    response = f"one{closing}\n" + said("user", "You see\u2028a user\nand a mug.") + said("assistant", "two")
    assert [(turn.role, turn.text) for turn in turns_in(prompt, response)] == [
        ("user", "Put it there."),
        ("assistant", "one"),
        ("user", "You see\u2028a user\nand a mug."),
        ("assistant", "two"),
    ]


def test_a_response_without_turns_is_one_and_one_cut_off_before_a_turn_has_no_such_turn() -> None:
    assert turns_in("Why?", "Because.") == [Turn("user", "Why?"), Turn("assistant", "Because.")]
    assert turns_in("Why?", "") == [Turn("user", "Why?"), Turn("assistant", "")]
    assert [t.text for t in turns_in("Why?", "Because.\nuser\nAnd?\nassistant\n")] == ["Why?", "Because.", "And?"]
