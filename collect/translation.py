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
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from collect.games import GameFile
from collect.grammar import Entity, Grammar, Part, Symbol
from collect.sas import Axioms, SasTask, UnknownForm, mask, parse_sas
from collect.textworld_grammar import Source, read_grammar, read_query

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
        return _Resolver(task, parse_sas(sas), read_grammar(game.grammar)).translation()
    except UnknownForm:
        raise
    except (Exception, SystemExit) as error:  # whatever the parsers raise; the translator leaves by SystemExit
        raise UnknownForm(f"{type(error).__name__}: {error}") from error
    finally:
        sys.argv = arguments


class _Resolver:
    """Numbers the facts of a game and finds those that its grammar asks for."""

    def __init__(self, task: Any, sas: SasTask, source: Source) -> None:
        from textworld.logic import Type, TypeHierarchy

        self._sas = sas
        self._source = source
        self._types_of = {object_.name: object_.type_name for object_ in task.objects}
        if not self._types_of.keys().isdisjoint({"i", "p"}):
            raise UnknownForm("an object named i or p, which TextWorld spells otherwise")
        self._types = TypeHierarchy()
        for type_ in task.types:
            with suppress(ValueError):  # a type that is declared again; the first counts, as in TextWorld
                self._types.add(Type(type_.name, type_.supertype_names))
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
        used = dict.fromkeys(operator.action for operator in self._sas.operators)
        actions = {name: Action(self._parameters[name], *self._source.actions[name]) for name in used}
        source = Source(self._source.rules, {name: self._source.actions[name] for name in used})
        queries = {query: self._query(query) for query in source.queries()}
        facts = tuple(tuple(argument.name for argument in fact.arguments) for fact in self._numbers)
        grammar = Grammar(source.rules, queries, facts, self._entities())
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

    def _query(self, query: str) -> tuple[Part, ...]:
        """Which facts each atom of a conjunctive query may be, in the order in which TextWorld tries them."""
        return tuple(
            Part(tuple(f"{p.name}:{p.type}" for p in atom.parameters), tuple(self._candidates(atom.signature)))
            for atom in read_query(query)
        )

    def _candidates(self, signature: Any) -> Iterable[int]:
        types = self._types
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
