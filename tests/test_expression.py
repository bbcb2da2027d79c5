from types import SimpleNamespace

import pytest

from collect.expression import evaluate

THINGS = {"o": SimpleNamespace(name="mug 1", indefinite="a", id="mug|1"), "r": SimpleNamespace(name="", id="bin|1")}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("o.name", "mug 1"),
        (" o.indefinite + ' ' + o.name ", "a mug 1"),
        ("r.name or r.id", "bin|1"),
        ("'just so'", "just so"),
    ],
)
def test_the_forms_that_alfworld_uses(expression: str, value: str) -> None:
    assert evaluate(expression, THINGS) == value


@pytest.mark.parametrize(
    "expression",
    ["o.name.upper()", "o.__class__", "__import__('os')", "o.name * 3", "[o.name]", "o.name if o else 1", "1"],
)
def test_anything_else_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="not text"):
        evaluate(expression, THINGS)


def test_a_variable_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="x"):
        evaluate("x.name", THINGS)
