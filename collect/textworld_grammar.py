"""TextWorld's grammar language, read with TextWorld's own parsers into the symbols of `collect.grammar`.

The parsers are slow, and the grammars of ALFWorld's games are all but the same: the one that ALFWorld ships, with the
task's sentence put in. So what was read once is kept, block by block and text by text. A process that imports
`collect.shipped_grammar` has read that one beforehand.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from collect.expression import evaluate
from collect.grammar import Alternative, Each, Entity, Listing, Rule, Symbol, Text, Value
from collect.sas import UnknownForm

# What a block is made of: strings and comments, in which nothing else counts, and the marks that may end it.
_MARKS = re.compile(r'"""(?:.|\n)*?"""|"[^"]*"|#.*|[{};]')


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar as it is written: its rules, and by action how its command reads and what the game answers."""

    rules: dict[str, tuple[Alternative, ...]]
    actions: dict[str, tuple[tuple[Symbol, ...], tuple[Symbol, ...]]]

    def queries(self) -> tuple[str, ...]:
        """Every query in it, once."""
        alternatives = [alternative for rule in self.rules.values() for alternative in rule]
        texts = [
            *(alternative.condition for alternative in alternatives),
            *_queries(symbol for alternative in alternatives for symbol in alternative.symbols),
            *_queries(symbol for said in self.actions.values() for symbols in said for symbol in symbols),
        ]
        return tuple(query for query in dict.fromkeys(texts) if query)


@dataclass(frozen=True, slots=True)
class _Block:
    """One block of a grammar; `action` and what it says are None in a block of rules. `rules` is JSON."""

    action: str | None
    template: str | None
    feedback: str | None
    rules: str


def read_grammar(text: str) -> Source:
    """Read a whole grammar. Raises `UnknownForm`, and whatever TextWorld's parsers raise, where it is none."""
    blocks = [block for part in _split(text) for block in _read_blocks(part)]
    rules = {name: rule for block in blocks for name, rule in json.loads(block.rules).items()}
    return Source(
        rules={
            name: tuple(Alternative(said.get("condition") or None, read_symbols(said["rhs"])) for said in rule)
            for name, rule in rules.items()
        },
        actions={
            block.action.lower(): (read_symbols(block.template or ""), read_symbols(block.feedback or ""))
            for block in blocks
            if block.action is not None
        },
    )


@cache
def read_symbols(text: str) -> tuple[Symbol, ...]:
    """The symbols that a text of the grammar is made of."""
    from textworld.envs.pddl.textgen import _parse_and_convert

    return tuple(_symbol(symbol) for symbol in _parse_and_convert(text, rule_name="symbols"))


@cache
def read_query(text: str) -> tuple[Any, ...]:
    """The atoms of a conjunctive query, as TextWorld's predicates."""
    from textworld.logic import Rule as Query

    return tuple(Query.parse_conjunctive_query(text).preconditions)


def _split(text: str) -> Iterator[str]:
    """The blocks of a grammar; what comes after the last of them goes to the parser as it is."""
    begun = depth = 0
    for mark in _MARKS.finditer(text):
        depth += {"{": 1, "}": -1}.get(mark.group(), 0)
        if depth == 0 and mark.group() in ("}", ";"):
            yield text[begun : mark.end()]
            begun = mark.end()
    if text[begun:].strip():
        yield text[begun:]


@cache
def _read_blocks(text: str) -> tuple[_Block, ...]:
    return tuple(_block(node) for node in _parser().parse(text, rule_name="pddlStart").parts)


@cache
def _parser() -> Any:
    from textworld.envs.pddl.logic.model import PddlLogicModelBuilderSemantics
    from textworld.envs.pddl.logic.parser import PddlLogicParser

    return PddlLogicParser(semantics=PddlLogicModelBuilderSemantics(), parseinfo=True)


def _block(node: Any) -> _Block:
    if type(node).__name__ == "ActionGrammarNode":
        return _Block(None, None, None, _code(node.code))
    said = _code(node.grammar.code) if node.grammar else "{}"
    uncommented = "\n".join(line for line in said.split("\n") if not line.lstrip().startswith("#"))
    return _Block(node.name, node.template.template[1:-1], node.feedback.name[1:-1], uncommented)


def _code(quoted: str) -> str:
    return textwrap.dedent(quoted[3:-3])


def _symbol(symbol: Any) -> Symbol:
    """A symbol of TextWorld's as one of ours."""
    kinds: dict[str, Callable[[], Symbol]] = {
        "TerminalSymbol": lambda: Text(str(symbol.symbol)),
        "NonterminalSymbol": lambda: Rule(str(symbol.symbol)),
        "EvalSymbol": lambda: Value(_checked(symbol.expression)),
        "ConditionalSymbol": lambda: _each(symbol),
        "ListSymbol": lambda: Listing(_each(symbol.symbol)),
    }
    return kinds[type(symbol).__name__]()


def _each(symbol: Any) -> Each:
    said = _symbol(symbol.expression)
    if not isinstance(said, (Rule, Value)):
        raise UnknownForm(f"{symbol!r} in a grammar")
    return Each(said, symbol.given or None)


def _checked(expression: str) -> str:
    """The expression, if it is one that can be evaluated."""
    try:
        evaluate(expression, _Anything())
    except ValueError as error:
        raise UnknownForm(str(error)) from error
    return expression


class _Anything(dict[str, Entity]):
    """Binds every variable."""

    def __missing__(self, name: str) -> Entity:
        return Entity(name, "object", name)


def _queries(symbols: Iterable[Symbol]) -> Iterable[str | None]:
    for symbol in symbols:
        if isinstance(symbol, Each):
            yield symbol.query
        elif isinstance(symbol, Listing):
            yield symbol.items.query
