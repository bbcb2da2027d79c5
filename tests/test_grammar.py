import pytest

from collect.errors import EnvironmentFault
from collect.grammar import Alternative, Each, Entity, Grammar, Listing, Part, Rule, Symbol, Text, Value, Writer

# Facts: 0 in(apple, box), 1 in(pear, box), 2 in(plum, box), 3 open(box), 4 near(box, bag), 5 near(bag, box)
FACTS = (("apple", "box"), ("pear", "box"), ("plum", "box"), ("box",), ("box", "bag"), ("bag", "box"))
IN = Part(("o:object", "r:box"), (0, 1, 2))
NAME = Value("o.indefinite + ' ' + o.name")
CONTENT = Listing(Each(NAME, "in"))


def writer(**rules: tuple[Alternative, ...]) -> Writer:
    words = {"list_empty": "nothing", "list_separator": ", ", "list_last_separator": ", and "}
    rules |= {name: (Alternative(None, (Text(text),)),) for name, text in words.items()}
    queries = {
        "in": (IN,),
        "open": (Part(("r:box",), (3,)),),
        "open and in": (Part(("r:box",), (3,)), IN),
        "near twice": (Part(("a:box", "b:box"), (4, 5)), Part(("b:box", "c:box"), (4, 5))),
    }
    entities = {name: Entity(name, "object", f"{name} 1") for name in ("apple", "pear", "plum", "box", "bag")}
    return Writer(Grammar(rules, queries, FACTS, entities))


def facts(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((), "nothing"),
        ((1,), "a pear 1"),
        ((0, 2), "a apple 1, and a plum 1"),
        ((0, 1, 2), "a apple 1, a pear 1, and a plum 1"),
    ],
)
def test_a_listing_has_separators_and_a_word_for_nothing(there: tuple[int, ...], said: str) -> None:
    assert writer().write((CONTENT,), facts(*there), {"r:box": "box"}) == said


def test_the_first_alternative_counts_whose_condition_is_met() -> None:
    look = (
        Alternative("open and in", (Text("full"),)),
        Alternative("open", (Text("open"),)),
        Alternative(None, (Text("shut"),)),
    )
    for there, said in (((), "shut"), ((0,), "shut"), ((3,), "open"), ((0, 3), "full")):
        assert writer(look=look).write((Rule("look"),), facts(*there), {"r:box": "box"}) == said


def test_what_is_bound_restricts_a_query_and_what_a_query_binds_is_forgotten_after_it() -> None:
    symbols: tuple[Symbol, ...] = (Each(Value("o.name"), "in"), Text("|"), Value("r.name"))
    assert writer().write(symbols, facts(0, 1), {"r:box": "box", "o:object": "pear"}) == "pear 1|box 1"
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        writer().write((Each(Value("o.name"), "in"), Value("o.name")), facts(0), {"r:box": "box"})


def test_different_placeholders_are_different_objects() -> None:
    """A chain of three needs three objects, and there are but two."""
    assert writer().write((Listing(Each(Value("a.name"), "near twice")),), facts(4, 5), {}) == "nothing"


def test_a_placeholder_of_another_type_is_another_placeholder() -> None:
    assert (
        writer().write((Listing(Each(Value("o.name"), "in")),), facts(0, 1), {"r:thing": "bag"})
        == "apple 1, and pear 1"
    )


@pytest.mark.parametrize("said", [Rule("unknown"), Rule("never"), Value("x.name")])
def test_what_textworld_cannot_write_is_a_fault(said: Symbol) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        writer(never=(Alternative("open", (Text("open"),)),)).write((said,), 0, {})


def test_reads_names_every_fact_that_can_change_the_text() -> None:
    rules = {
        "outer": (Alternative(None, (Rule("inner"), Rule("outer"))),),
        "inner": (Alternative("open", (Text("open"),)), Alternative(None, (CONTENT,))),
    }
    assert writer(**rules).reads((Rule("outer"),)) == facts(0, 1, 2, 3)
    assert writer(**rules).reads((Text("nothing"), Value("r.name"))) == 0
