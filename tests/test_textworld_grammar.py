"""TextWorld's grammars as we read them, against TextWorld's own reading."""

from pathlib import Path

import pytest
from alfworld.info import ALFRED_TWL2_PATH
from textworld.envs.pddl.logic import GameLogic

from collect.games import read_game_file
from collect.grammar import Each, Listing, Rule, Symbol, Text, Value
from collect.textworld_grammar import read_grammar, read_query

TRAPS = '''
grammar :: """
    { "a": [{"condition": "on(o:o, r:r) & open(r:r)", "rhs": "In {r.name} [{o.indefinite + ' ' + o.name | on(o:o, r:r)}]"},
            {"rhs": "#b# and {o.name}"}] }
""";
# a comment with "one quote, a { and a ;
action Look {
    template :: "look; {r.name} }";
    feedback :: "#a#";
    grammar :: """
        {
    # not JSON { ;
            "b": [{"rhs": "twice"}], "a2": [{"rhs": "x"}]
        }
    """;
}
grammar :: """ { "b": [{"rhs": "the last counts"}] } """;
'''  # noqa: E501


def written(symbol: Symbol) -> str:
    """As TextWorld writes its symbols."""
    match symbol:
        case Text(text):
            return f"TerminalSymbol({text!r})"
        case Rule(rule):
            return f"NonterminalSymbol('#{rule}#')"
        case Value(expression):
            return f"EvalSymbol('{{{expression}}}')"
        case Each(said, query):
            inner = said.rule if isinstance(said, Rule) else said.expression
            return f"ConditionalSymbol('{{{inner}|{query or ''}}}')"
        case Listing(items):
            return f"ListSymbol('[{written(items)}]')"


@pytest.mark.parametrize("text", [Path(ALFRED_TWL2_PATH).read_text(), TRAPS], ids=["ALFWorld's own", "one with traps"])
def test_a_grammar_is_read_as_textworld_reads_it(text: str) -> None:
    read, theirs = read_grammar(text), GameLogic(domain="", grammar=text)

    rules = {
        name: [(rule.condition, [repr(symbol).replace("|None}", "|}") for symbol in rule.rhs]) for rule in alternatives]
        for name, alternatives in theirs.grammar._rules.items()
    }
    assert {
        name: [(said.condition or "", [written(symbol) for symbol in said.symbols]) for said in alternatives]
        for name, alternatives in read.rules.items()
    } == rules
    assert list(read.rules) == list(rules)
    assert set(read.actions) == set(theirs.actions)


def test_the_task_of_a_game_is_its_own_though_the_rest_was_read_before(real_game: Path) -> None:
    read_grammar(Path(ALFRED_TWL2_PATH).read_text())
    (task,) = read_grammar(read_game_file(real_game).grammar).rules["task"]
    assert task.symbols == (Text("Your task is to: heat some potato and put it in sinkbasin."),)


def test_queries_are_found_wherever_they_stand() -> None:
    queries = read_grammar(TRAPS).queries()
    assert queries == ("on(o:o, r:r) & open(r:r)", "on(o:o, r:r)")
    assert [atom.name for atom in read_query(queries[0])] == ["on", "open"]
