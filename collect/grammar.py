"""The text of a game: TextWorld's context-sensitive grammar, written out over a set of facts.

A rule of the grammar has alternatives, of which the first counts whose condition some facts satisfy. What it says is a
row of symbols, and symbols may range over everything that a query finds: `[{o.name | inreceptacle(o:object,
r:receptacle)}]` lists what lies in `r`. A binding, from placeholders (`r:receptacle`) to objects, says which `r`.

Facts are numbered, and a set of facts is an integer with the bits of its facts set, so a state is compared and hashed
at once. Everything here is data and has been resolved beforehand (`collect.translation`): a query names the facts that
could satisfy it, in the order in which TextWorld tries them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collect.errors import EnvironmentFault
from collect.expression import evaluate
from collect.sas import mask


@dataclass(frozen=True, slots=True)
class Entity:
    """What texts may say of an object of the game; the names of the fields are TextWorld's."""

    id: str
    type: str
    name: str
    indefinite: str = "a"
    definite: str = "the"
    adj: None = None
    noun: None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Text:
    """Text as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule of the grammar says."""

    rule: str


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression says of the objects bound."""

    expression: str


@dataclass(frozen=True, slots=True)
class Each:
    """A symbol for each answer to a query, one after the other; without a query just once."""

    symbol: Rule | Value
    query: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The same with separators between, and words of its own for nothing."""

    items: Each


Symbol = Text | Rule | Value | Each | Listing


@dataclass(frozen=True, slots=True)
class Alternative:
    """One thing that a rule may say, where its condition (a query) has an answer."""

    condition: str | None
    symbols: tuple[Symbol, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the atoms whose conjunction is a query: its placeholders, and the facts that could be it, in order."""

    placeholders: tuple[str, ...]
    facts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """All rules by name, the queries in them by their text, and the arguments of each fact, which are entities."""

    rules: dict[str, tuple[Alternative, ...]]
    queries: dict[str, tuple[Part, ...]]
    facts: tuple[tuple[str, ...], ...]
    entities: dict[str, Entity]


Binding = Mapping[str, str]  # placeholder to object; in the order in which they were bound
_Candidates = list[tuple[tuple[str, ...], int]]  # arguments and bit of each fact


@dataclass(frozen=True, slots=True)
class _Part:
    placeholders: tuple[str, ...]
    candidates: _Candidates
    by_argument: tuple[dict[str, _Candidates], ...]  # the same, by the object in each place


class Writer:
    """Writes texts. It keeps nothing but the grammar, so several threads may use it at once."""

    def __init__(self, grammar: Grammar) -> None:
        self._rules = grammar.rules
        self._entities = grammar.entities
        self._queries = {
            query: [_index(part, grammar.facts) for part in parts] for query, parts in grammar.queries.items()
        }
        self._masks = {
            query: mask(fact for part in parts for fact in part.facts) for query, parts in grammar.queries.items()
        }

    def write(self, symbols: Sequence[Symbol], facts: int, binding: Binding) -> str:
        """The text of the symbols where `facts` hold.

        Raises `EnvironmentFault` where TextWorld would fail: at a rule that is not there or has no alternative that
        applies, and at an object that is not bound.
        """
        try:
            return "".join(text for symbol in symbols for text in self._texts(symbol, facts, binding))
        except (KeyError, ValueError) as error:
            raise EnvironmentFault(f"the grammar cannot be written out: {error}") from error

    def reads(self, symbols: Sequence[Symbol]) -> int:
        """The facts that the text of these symbols may depend on."""
        facts, seen, open_ = 0, set(), list(symbols)
        while open_:
            symbol = open_.pop()
            if isinstance(symbol, Listing):
                open_ += [symbol.items, Rule("list_empty"), Rule("list_separator"), Rule("list_last_separator")]
            elif isinstance(symbol, Each):
                facts |= self._masks[symbol.query] if symbol.query else 0
                open_.append(symbol.symbol)
            elif isinstance(symbol, Rule) and symbol.rule not in seen:
                seen.add(symbol.rule)
                for alternative in self._rules.get(symbol.rule, ()):
                    facts |= self._masks[alternative.condition] if alternative.condition else 0
                    open_ += alternative.symbols
        return facts

    def _texts(self, symbol: Symbol, facts: int, binding: Binding) -> Iterator[str]:
        match symbol:
            case Text(text):
                yield text
            case Value(expression):
                yield evaluate(expression, {name.partition(":")[0]: self._entities[binding[name]] for name in binding})
            case Rule(rule):
                for said in self._choose(rule, facts, binding):
                    yield from self._texts(said, facts, binding)
            case Each(each, query):
                for answer in self._answers(query, facts, binding):
                    yield from self._texts(each, facts, answer)
            case Listing(Each(each, query)):
                answers = list(self._answers(query, facts, binding))
                if not answers:
                    yield from self._texts(Rule("list_empty"), facts, binding)
                for number, answer in enumerate(answers):
                    if number:
                        separator = "list_separator" if number < len(answers) - 1 else "list_last_separator"
                        yield from self._texts(Rule(separator), facts, binding)
                    yield from self._texts(each, facts, answer)

    def _choose(self, rule: str, facts: int, binding: Binding) -> Sequence[Symbol]:
        for alternative in self._rules[rule]:
            if not alternative.condition or any(True for _ in self._answers(alternative.condition, facts, binding)):
                return alternative.symbols
        raise ValueError(f"no alternative of rule {rule!r} applies")

    def _answers(self, query: str | None, facts: int, binding: Binding) -> Iterator[Binding]:
        """Every way to bind the query's placeholders so that `facts` hold it.

        As in TextWorld, objects bound to different placeholders differ, those bound beforehand included.
        """
        if not query:
            yield binding
            return
        yield from _match(self._queries[query], facts, dict(binding), set(binding.values()))


def _match(parts: Sequence[_Part], facts: int, binding: dict[str, str], used: set[str]) -> Iterator[Binding]:
    """Extend the binding part by part; both `binding` and `used` are left as they were."""
    if not parts:
        yield dict(binding)
        return
    part, *rest = parts
    candidates = part.candidates
    for place, placeholder in enumerate(part.placeholders):
        if (bound := binding.get(placeholder)) is not None:
            candidates = part.by_argument[place].get(bound, [])
            break
    for arguments, bit in candidates:
        if not facts & bit:
            continue
        new: list[str] = []
        for placeholder, object_ in zip(part.placeholders, arguments, strict=True):
            bound = binding.get(placeholder)
            if bound is None and object_ not in used:
                binding[placeholder] = object_
                used.add(object_)
                new.append(placeholder)
            elif bound != object_:
                break
        else:
            yield from _match(rest, facts, binding, used)
        for placeholder in new:
            used.discard(binding.pop(placeholder))


def _index(part: Part, facts: Sequence[tuple[str, ...]]) -> _Part:
    candidates = [(facts[fact], 1 << fact) for fact in part.facts]
    by_argument: tuple[dict[str, _Candidates], ...] = tuple({} for _ in part.placeholders)
    for candidate in candidates:
        for place, object_ in enumerate(candidate[0]):
            by_argument[place].setdefault(object_, []).append(candidate)
    return _Part(part.placeholders, candidates, by_argument)
