"""A game resolved for `collect.compiled`: what TextWorld works out anew at every step, worked out once.

TextWorld plays an ALFWorld game in two worlds at once. Fast Downward's planner holds the values of the task's
variables; they decide which commands are admissible and whether the game is won. TextWorld's own set of facts decides
what the texts say. It begins with the task's initial facts and the variables that are true, and then follows the
effects of each command, as both `p` and `not_p`. The two differ: a negated fact is there only once a command has made
it so, an effect is taken over even where its condition did not hold, and derived variables are never taken over. So
what a text says depends on the way to a state as well as on the state.

Making a translation needs TextWorld, ALFWorld and Fast Downward's translator, takes about half a second, and redirects
`sys.stdout` and `sys.argv` meanwhile: do it in a process of its own. Playing it needs none of them.
"""

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from collect.expression import evaluate
from collect.games import GameFile
from collect.grammar import Alternative, Each, Entity, Grammar, Listing, Part, Rule, Symbol, Text, Value
from collect.sas import Axioms, SasTask, UnknownForm, mask, parse_sas

FORMAT = 1  # raise it when the same game would give another translation
_TRANSLATORS = ("textworld", "fast-downward-textworld", "alfworld")


@dataclass(frozen=True, slots=True)
class Action:
    """How a command of this action reads, and what the game answers to it; `parameters` are placeholders."""

    parameters: tuple[str, ...]
    template: tuple[Symbol, ...]
    feedback: tuple[Symbol, ...]


@dataclass(frozen=True, slots=True)
class Translation:
    """A whole game. `positive` and `negative` are the facts that a variable's two values stand for in texts;
    `initial_facts` those that texts begin with."""

    task: SasTask
    grammar: Grammar
    actions: dict[str, Action]
    initial_facts: tuple[int, ...]
    positive: tuple[int, ...]
    negative: tuple[int, ...]


def identity() -> str:
    """Of what makes translations: another identity, another translation."""
    return " ".join([f"format {FORMAT}", *(f"{package} {version(package)}" for package in _TRANSLATORS)])


def translate(game: GameFile) -> Translation:
    """Translate a game. Raises `UnknownForm` where the game is not of the form that ALFWorld's games have."""
    from fast_downward import pddl2sas

    arguments = sys.argv
    try:
        task, sas = pddl2sas(game.pddl_domain, game.pddl_problem)
        return _Resolver(task, parse_sas(sas), game.grammar).translation()
    except UnknownForm:
        raise
    except (Exception, SystemExit) as error:  # whatever the parsers raise; the translator leaves by SystemExit
        raise UnknownForm(f"{type(error).__name__}: {error}") from error
    finally:
        sys.argv = arguments


class _Resolver:
    """Numbers the facts of a game and parses its grammar, with TextWorld's own classes."""

    def __init__(self, task: Any, sas: SasTask, grammar: str) -> None:
        from textworld.envs.pddl.logic import GameLogic
        from textworld.logic import Type

        self._sas = sas
        self._types_of = {object_.name: object_.type_name for object_ in task.objects}
        if not self._types_of.keys().isdisjoint({"i", "p"}):
            raise UnknownForm("an object named i or p, which TextWorld spells otherwise")
        self._logic = GameLogic(domain="", grammar=grammar)
        for type_ in task.types:
            with suppress(ValueError):  # a type that is declared again; the first counts, as in TextWorld
                self._logic.types.add(Type(type_.name, type_.supertype_names))
        self._parameters = {
            action.name: tuple(f"{p.name.strip('?')}:{p.type_name}" for p in action.parameters)
            for action in task.actions
        }
        self._numbers: dict[Any, int] = {}  # facts, as TextWorld's propositions
        stated = [self._fact(name, arguments) for name, arguments in _initial_atoms(task)]
        self._positive = [self._fact(v.predicate, v.arguments) for v in sas.variables]
        start = Axioms(sas).derive(mask(variable for variable, value in enumerate(sas.initial) if value))
        self._initial = {*stated, *(fact for v, fact in enumerate(self._positive) if start >> v & 1)}
        self._negative = [self._fact(f"not_{v.predicate}", v.arguments) for v in sas.variables]

    def translation(self) -> Translation:
        actions = {
            name: Action(
                self._parameters[name],
                self._parse(self._logic.actions[name].template),
                self._parse(self._logic.actions[name].feedback_rule),
            )
            for name in dict.fromkeys(operator.action for operator in self._sas.operators)
        }
        rules = {
            name: tuple(Alternative(rule.condition or None, self._symbols(rule.rhs)) for rule in alternatives)
            for name, alternatives in self._logic.grammar._rules.items()
        }
        queries = {
            query: self._query(query)
            for query in dict.fromkeys(
                [
                    *(alternative.condition for alternatives in rules.values() for alternative in alternatives),
                    *_queries(s for alternatives in rules.values() for a in alternatives for s in a.symbols),
                    *_queries(s for action in actions.values() for s in (*action.template, *action.feedback)),
                ]
            )
            if query
        }
        facts = tuple(tuple(argument.name for argument in fact.arguments) for fact in self._numbers)
        grammar = Grammar(rules, queries, facts, self._entities())
        return Translation(
            self._sas, grammar, actions, tuple(sorted(self._initial)), tuple(self._positive), tuple(self._negative)
        )

    def _fact(self, name: str, arguments: Iterable[str]) -> int:
        from textworld.logic import Proposition, Variable

        fact = Proposition(name, [Variable(argument, self._types_of[argument]) for argument in arguments])
        return self._numbers.setdefault(fact, len(self._numbers))

    def _entities(self) -> dict[str, Entity]:
        """The objects that any fact of the start is about, named as ALFWorld names them."""
        from alfworld.agents.utils.misc import Demangler
        from textworld.generator.game import EntityInfo

        infos = {
            argument.name: EntityInfo(argument.name, argument.type)
            for fact, number in self._numbers.items()
            if number in self._initial
            for argument in fact.arguments
        }
        demangler = Demangler(game_infos=infos, shuffle=False)
        return {id_: Entity(id_, info.type, demangler.demangle_alfred_name(id_)) for id_, info in infos.items()}

    def _parse(self, text: str) -> tuple[Symbol, ...]:
        from textworld.envs.pddl.textgen import _parse_and_convert

        return self._symbols(_parse_and_convert(text, rule_name="symbols"))

    def _symbols(self, symbols: Iterable[Any]) -> tuple[Symbol, ...]:
        return tuple(_symbol(symbol) for symbol in symbols)

    def _query(self, query: str) -> tuple[Part, ...]:
        """Which facts each atom of a conjunctive query may be, in the order in which TextWorld tries them."""
        from textworld.logic import Rule as Query

        return tuple(
            Part(tuple(f"{p.name}:{p.type}" for p in atom.parameters), tuple(self._candidates(atom.signature)))
            for atom in Query.parse_conjunctive_query(query).preconditions
        )

    def _candidates(self, signature: Any) -> Iterable[int]:
        types = self._logic.types
        for subtypes in types.multi_subtypes([types.get(name) for name in signature.types]):
            names = [type_.name for type_ in subtypes]
            for fact in sorted(f for f in self._numbers if f.name == signature.name and list(f.types) == names):
                yield self._numbers[fact]


def _initial_atoms(task: Any) -> Iterable[tuple[str, Iterable[str]]]:
    """The initial facts that TextWorld takes from the translator's task: atoms, and functions that are no number."""
    from fast_downward.translate.pddl.conditions import Atom
    from fast_downward.translate.pddl.f_expression import Assign

    for fact in task.init:
        if isinstance(fact, Atom) and fact.predicate != "=":
            yield fact.predicate, fact.args
        elif isinstance(fact, Assign) and fact.fluent.symbol != "total-cost":
            value = str(fact.expression.value)
            if not value.isdigit():
                yield value, fact.fluent.args


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
