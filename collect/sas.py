"""Reads what Fast Downward's translator writes: a planning task over variables that are true or false.

The format is described at https://www.fast-downward.org/latest/documentation/translator-output-format/. ALFWorld's
games are translated without mutex groups, so every variable stands for one ground atom and has two values: 0, the atom
holds, and 1, it does not. Here they are True and False.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_

Condition = tuple[int, bool]  # (variable, value)


class UnknownForm(Exception):
    """The task is of a form that is not among those read here."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A ground atom. `layer` is -1, or the axiom layer that its value is derived in."""

    predicate: str
    arguments: tuple[str, ...]
    layer: int


@dataclass(frozen=True, slots=True)
class Effect:
    """Sets a variable, where the conditions held before."""

    conditions: tuple[Condition, ...]
    variable: int
    value: bool


@dataclass(frozen=True, slots=True)
class Operator:
    """A ground action. Effects are in the order in which Fast Downward applies them."""

    action: str
    arguments: tuple[str, ...]
    preconditions: tuple[Condition, ...]
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Axiom:
    """Derives a value of its variable wherever the conditions hold, else the variable has its initial one."""

    conditions: tuple[Condition, ...]
    variable: int
    value: bool


@dataclass(frozen=True, slots=True)
class SasTask:
    """A whole task. `initial` is the value of each variable, for a derived one that which it has without axioms."""

    variables: tuple[Variable, ...]
    initial: tuple[bool, ...]
    goal: tuple[Condition, ...]
    operators: tuple[Operator, ...]
    axioms: tuple[Axiom, ...]


class Axioms:
    """Derives the variables that follow from the others. A state is an integer: bit v is set where variable v is true.

    Layer by layer, as Fast Downward does: a derived variable has its initial value until an axiom of its layer, applied
    until nothing changes any more, gives it the other.
    """

    def __init__(self, task: SasTask) -> None:
        derived = [v for v, variable in enumerate(task.variables) if variable.layer >= 0]
        self._derived = mask(derived)
        self._underived = mask(v for v in derived if task.initial[v])
        layers: dict[int, list[tuple[int, int, int, bool]]] = {}
        for axiom in task.axioms:
            layer = layers.setdefault(task.variables[axiom.variable].layer, [])
            layer.append((*masks(axiom.conditions), 1 << axiom.variable, axiom.value))
        self._layers = [layers[layer] for layer in sorted(layers)]
        self.reads = self._derived | mask(v for axiom in task.axioms for v, _ in axiom.conditions)

    def derive(self, state: int) -> int:
        """The same state with every derived variable at its value."""
        state = state & ~self._derived | self._underived
        for layer in self._layers:
            before = None
            while state != before:
                before = state
                for about, expected, bit, value in layer:
                    if state & about == expected:
                        state = state | bit if value else state & ~bit
        return state


def mask(bits: Iterable[int]) -> int:
    """The integer with just these bits set."""
    number = 0
    for bit in bits:
        number |= 1 << bit
    return number


def mask_of(numbers: Iterable[int]) -> int:
    """The integer with every bit set that any of the numbers has."""
    return reduce(or_, numbers, 0)


def masks(conditions: Iterable[Condition]) -> tuple[int, int]:
    """The variables that conditions are about, and which of them are to be true: `state & about == expected`."""
    conditions = list(conditions)
    return mask(variable for variable, _ in conditions), mask(variable for variable, value in conditions if value)


def parse_sas(text: str) -> SasTask:
    """Read a task in version 3 of the format. Raises `UnknownForm` for mutex groups and variables of other values."""
    lines = iter(text.split("\n"))
    try:
        for line in ("begin_version", "3", "end_version", "begin_metric"):
            _expect(lines, line)
        next(lines)
        _expect(lines, "end_metric")
        variables = tuple(_variable(lines) for _ in range(int(next(lines))))
        _expect(lines, "0")
        _expect(lines, "begin_state")
        initial = tuple(next(lines) == "0" for _ in variables)
        _expect(lines, "end_state")
        _expect(lines, "begin_goal")
        goal = _conditions(lines)
        _expect(lines, "end_goal")
        operators = tuple(_operator(lines) for _ in range(int(next(lines))))
        axioms = tuple(_axiom(lines) for _ in range(int(next(lines))))
    except (StopIteration, ValueError, RuntimeError) as error:  # RuntimeError: StopIteration within a generator
        raise UnknownForm(f"not a task in Fast Downward's format ({error})") from error
    return SasTask(variables, initial, goal, operators, axioms)


def _expect(lines: Iterator[str], expected: str) -> None:
    line = next(lines)
    if line != expected:
        raise UnknownForm(f"{line!r} where {expected!r} was expected")


def _variable(lines: Iterator[str]) -> Variable:
    _expect(lines, "begin_variable")
    next(lines)  # its name
    layer = int(next(lines))
    values = [next(lines) for _ in range(int(next(lines)))]
    _expect(lines, "end_variable")
    atom = values[0].removeprefix("Atom ")
    if values != [f"Atom {atom}", f"NegatedAtom {atom}"]:
        raise UnknownForm(f"a variable with the values {values}")
    predicate, _, arguments = atom.removesuffix(")").partition("(")
    return Variable(predicate, tuple(argument for argument in arguments.split(", ") if argument), layer)


def _conditions(lines: Iterator[str]) -> tuple[Condition, ...]:
    return tuple(_condition(next(lines).split()) for _ in range(int(next(lines))))


def _condition(words: list[str]) -> Condition:
    variable, value = words
    return int(variable), value == "0"


def _operator(lines: Iterator[str]) -> Operator:
    _expect(lines, "begin_operator")
    action, *arguments = next(lines).split()
    preconditions = list(_conditions(lines))
    effects = []
    for _ in range(int(next(lines))):
        count, *words = next(lines).split()
        *pairs, variable, before, after = words
        conditions = tuple(_condition(pairs[2 * i : 2 * i + 2]) for i in range(int(count)))
        if before != "-1":
            preconditions.append((int(variable), before == "0"))
        effects.append(Effect(conditions, int(variable), after == "0"))
    next(lines)  # its cost
    _expect(lines, "end_operator")
    return Operator(action, tuple(arguments), tuple(preconditions), tuple(effects))


def _axiom(lines: Iterator[str]) -> Axiom:
    _expect(lines, "begin_rule")
    conditions = _conditions(lines)
    variable, _, value = next(lines).split()
    _expect(lines, "end_rule")
    return Axiom(conditions, int(variable), value == "0")
