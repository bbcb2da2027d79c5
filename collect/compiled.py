"""An ALFWorld game at memory speed, byte for byte as the stock engine plays it.

A state of the game is two integers (see `collect.translation`): the planner's variables, which decide what is
admissible and what wins, and the facts that texts are written from. Bits that nothing reads are left out, which makes
many states one. States and the transitions between them are kept as they are found, and shared by all instances of the
game: most steps of G trajectories are a look-up.

Nothing here imports TextWorld or ALFWorld, and any number of threads may play one game.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collect.environment import Observation
from collect.grammar import Rule, Writer
from collect.sas import Axioms, Operator, UnknownForm, mask, mask_of, masks
from collect.translation import Action, Translation

_MOST_STATES = 2_000  # kept of one game: up to 8 MB, and more than a group can come to


class Ambiguous(UnknownForm):
    """A command has two meanings in a state."""


class State:
    """One state: what the game admits in it, and the transitions from it that have been found so far."""

    __slots__ = ("admissible_commands", "commands", "facts", "planner", "transitions", "won")

    def __init__(self, planner: int, facts: int, admitted: "_Admitted", won: bool) -> None:
        self.planner = planner
        self.facts = facts
        self.commands, self.admissible_commands = admitted
        self.won = won
        self.transitions: dict[str, tuple[State, str]] = {}


class CompiledGame:
    """A game ready to play: `start` is its first state, `opening` what it says there.

    Raises `Ambiguous`, here or from `step`, at a state in which one command has two meanings: which of them the stock
    engine takes depends on an order inside its planner.
    """

    def __init__(self, translation: Translation) -> None:
        task = translation.task
        self._writer = Writer(translation.grammar)
        self._axioms = Axioms(task)
        self._goal = masks(task.goal)
        self._commands = _commands(translation, self._writer)
        self._index, self._unindexed = _by_rarest_condition(self._commands)
        self._indexed = mask_of(self._index)
        self._read_by_planner = self._goal[0] | self._axioms.reads
        self._read_by_templates = 0
        self._read_by_texts = 0
        for command in self._commands:
            self._read_by_planner |= command.about | mask_of(effect[0] for effect in command.effects)
            self._read_by_templates |= 0 if command.text else command.template_reads
            self._read_by_texts |= command.feedback_reads | command.template_reads
        self._states: dict[tuple[int, int], State] = {}
        self._admitted: dict[tuple[int, int], _Admitted] = {}
        self._feedbacks: dict[tuple[int, int], str] = {}
        planner = self._axioms.derive(mask(variable for variable, value in enumerate(task.initial) if value))
        facts = mask(translation.initial_facts)
        self.opening = self._writer.write((Rule("intro"),), facts, {})
        self.start = self._state(planner, facts)

    def step(self, state: State, command: str) -> tuple[State, str]:
        """The state that a command leads to, and what the game answers; what is not admissible changes nothing."""
        command = command.strip()
        found = state.transitions.get(command)
        if found is None:
            if command not in state.commands:
                return state, "Nothing happens."
            found = state.transitions.setdefault(command, self._apply(state, state.commands[command]))
        return found

    def _apply(self, state: State, command: "_Command") -> tuple[State, str]:
        planner = state.planner
        for about, expected, bit, value in command.effects:
            if state.planner & about == expected:
                planner = planner | bit if value else planner & ~bit
        facts = state.facts & ~command.off | command.on
        key = command.number, facts & command.feedback_reads
        feedback = self._feedbacks.get(key)
        if feedback is None:
            feedback = self._writer.write(command.action.feedback, facts, command.binding)
            self._feedbacks[key] = feedback
        return self._state(self._axioms.derive(planner), facts), feedback

    def _state(self, planner: int, facts: int) -> State:
        """The one object for this state, as far as anything can tell it from others."""
        planner &= self._read_by_planner
        facts &= self._read_by_texts
        state = self._states.get((planner, facts))
        if state is None:
            about, expected = self._goal
            state = State(planner, facts, self._admissible(planner, facts), planner & about == expected)
            if len(self._states) >= _MOST_STATES:
                self._forget()
            state = self._states.setdefault((planner, facts), state)
        return state

    def _forget(self) -> None:
        """Begin anew with what is kept; what instances stand in stays theirs until they leave it."""
        self._states, self._admitted, self._feedbacks = {}, {}, {}
        # Every state is reached from the first one, and would be kept by its transitions.
        start = self.start
        self.start = State(start.planner, start.facts, (start.commands, start.admissible_commands), start.won)
        self._states[start.planner, start.facts] = self.start

    def _admissible(self, planner: int, facts: int) -> "_Admitted":
        key = planner, facts & self._read_by_templates
        admitted = self._admitted.get(key)
        if admitted is None:
            commands: dict[str, _Command] = {}
            for command in self._applicable(planner):
                text = command.text or self._writer.write(command.action.template, facts, command.binding)
                other = commands.setdefault(text, command)
                # A condition with alternatives gives several operators of one name, which all do the same.
                if (other.operator.action, other.operator.arguments) != (
                    command.operator.action,
                    command.operator.arguments,
                ):
                    raise Ambiguous(f"{text!r} is both {_name(other)} and {_name(command)}")
            admitted = self._admitted.setdefault(key, (commands, tuple(sorted(commands))))
        return admitted

    def _applicable(self, planner: int) -> "Iterator[_Command]":
        candidates = list(self._unindexed)
        present = planner & self._indexed
        while present:
            bit = present & -present
            present ^= bit
            candidates += self._index[bit]
        return (command for command in candidates if planner & command.about == command.expected)


@dataclass(frozen=True, slots=True)
class _Command:
    """An operator of the task, ready to be tried on states.

    It is applicable where `planner & about == expected`; `effects` are (about, expected, bit, value). `on` and `off`
    are the facts that texts gain and lose by it. `text` is how the command reads, where that is the same in every
    state; the `_reads` are the facts that texts depend on.
    """

    number: int
    operator: Operator
    action: Action
    binding: dict[str, str]
    about: int
    expected: int
    effects: tuple[tuple[int, int, int, bool], ...]
    on: int
    off: int
    text: str | None
    template_reads: int
    feedback_reads: int


_Admitted = tuple[dict[str, _Command], tuple[str, ...]]


def _commands(translation: Translation, writer: Writer) -> list[_Command]:
    operators = translation.task.operators
    changes = [_fact_changes(operator, translation) for operator in operators]
    changing = mask_of(on | off for on, off in changes)
    facts = mask(translation.initial_facts)
    reads = {
        name: (writer.reads(action.template), writer.reads(action.feedback))
        for name, action in translation.actions.items()
    }
    commands = []
    for number, (operator, (on, off)) in enumerate(zip(operators, changes, strict=True)):
        action = translation.actions[operator.action]
        binding = dict(zip(action.parameters, operator.arguments, strict=False))
        template_reads, feedback_reads = reads[operator.action]
        fixed = not template_reads & changing
        commands.append(
            _Command(
                number,
                operator,
                action,
                binding,
                *masks(operator.preconditions),
                tuple((*masks(e.conditions), 1 << e.variable, e.value) for e in operator.effects),
                on,
                off,
                writer.write(action.template, facts, binding) if fixed else None,
                template_reads,
                feedback_reads,
            )
        )
    return commands


def _fact_changes(operator: Operator, translation: Translation) -> tuple[int, int]:
    """The facts that texts gain and lose by an operator: all its effects in order, those that did not fire included."""
    on = off = 0
    for effect in operator.effects:
        gained, lost = translation.positive[effect.variable], translation.negative[effect.variable]
        if not effect.value:
            gained, lost = lost, gained
        on = (on | 1 << gained) & ~(1 << lost)
        off = (off | 1 << lost) & ~(1 << gained)
    return on, off


def _by_rarest_condition(commands: Iterable[_Command]) -> tuple[dict[int, list[_Command]], list[_Command]]:
    """Commands by that bit of those they expect which the fewest others expect; and those that expect none."""
    expecting = Counter(bit for command in commands for bit in _bits(command.expected))
    index: dict[int, list[_Command]] = {}
    others = []
    for command in commands:
        if command.expected:
            index.setdefault(min(_bits(command.expected), key=lambda bit: expecting[bit]), []).append(command)
        else:
            others.append(command)
    return index, others


def _bits(number: int) -> Iterator[int]:
    """The powers of two that a number is the sum of."""
    while number:
        bit = number & -number
        yield bit
        number ^= bit


def _name(command: _Command) -> str:
    return f"({' '.join((command.operator.action, *command.operator.arguments))})"


class CompiledInstance:
    """One instance of a compiled game, with the methods of `collect.stock.StockInstance`."""

    def __init__(self, game: CompiledGame) -> None:
        self._game = game
        self._state = game.start

    def reset(self) -> Observation:
        """Start the game from its beginning."""
        self._state = self._game.start
        return self._observation(self._game.opening, 0.0)

    def step(self, command: str) -> Observation:
        """Send one command; what the game does not admit is answered by "Nothing happens." and changes nothing."""
        before = self._state
        self._state, text = self._game.step(before, command)
        return self._observation(text, float(self._state.won) - float(before.won))

    def _observation(self, text: str, reward: float) -> Observation:
        state = self._state
        return Observation(text, state.admissible_commands, reward, state.won, done=state.won)
