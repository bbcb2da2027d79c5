"""The small expressions in braces of a game's grammar, such as `{o.indefinite + ' ' + o.name}`.

TextWorld hands them to `eval`. Here a game file is data and not a program: they are read by a parser of just the forms
that ALFWorld uses, `r`, `r.name`, `'text'`, `a + b` and `a or b`.
"""

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_ATTRIBUTES = frozenset({"name", "id", "indefinite", "definite", "type", "adj", "noun"})


def evaluate(expression: str, variables: Mapping[str, Any]) -> str:
    """What the expression says of the entities in `variables`, which have the attributes of TextWorld's EntityInfo.

    Raises `ValueError` for any other form and `KeyError` for a variable that is not there.
    """
    return str(_value(_parse(expression), variables))


@lru_cache(maxsize=1024)
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression.strip(), mode="eval").body


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=variable):
            return variables[variable]
        case ast.Attribute(value=ast.Name(id=variable), attr=attribute) if attribute in _ATTRIBUTES:
            return getattr(variables[variable], attribute)
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, variables) + _value(right, variables)
        case ast.BoolOp(op=ast.Or(), values=values):
            return next((v for v in (_value(value, variables) for value in values) if v), "")
    raise ValueError(f"the grammar holds an expression that is not text: {ast.unparse(node)}")
