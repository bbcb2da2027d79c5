import pytest
from hypothesis import given
from hypothesis import strategies as st

from collect.sas import Axiom, Axioms, Effect, Operator, SasTask, UnknownForm, Variable, mask, masks, parse_sas

# A door that can be opened when it is closed, and puts out a light that is on; `seen` derives from both.
TASK = """begin_version
3
end_version
begin_metric
0
end_metric
3
begin_variable
var0
-1
2
Atom open(door)
NegatedAtom open(door)
end_variable
begin_variable
var1
-1
2
Atom light()
NegatedAtom light()
end_variable
begin_variable
var2
0
2
Atom seen(door, room)
NegatedAtom seen(door, room)
end_variable
0
begin_state
1
0
1
end_state
begin_goal
1
2 0
end_goal
1
begin_operator
push door
1
1 0
2
0 0 1 0
1 1 0 1 -1 1
1
end_operator
1
begin_rule
2
0 0
1 0
2 1 0
end_rule
"""


def test_reads_every_part_of_a_task() -> None:
    assert parse_sas(TASK) == SasTask(
        variables=(Variable("open", ("door",), -1), Variable("light", (), -1), Variable("seen", ("door", "room"), 0)),
        initial=(False, True, False),
        goal=((2, True),),
        operators=(
            Operator(
                "push",
                ("door",),
                # that the light is on, and that the door is closed, which its first effect asks for
                ((1, True), (0, False)),
                (Effect((), 0, True), Effect(((1, True),), 1, False)),
            ),
        ),
        axioms=(Axiom(((0, True), (1, True)), 2, True),),
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("3\nend_version", "4\nend_version", "'4' where '3'"),
        ("end_variable\n0\n", "end_variable\n1\n", "'1' where '0'"),
        ("NegatedAtom light()", "Atom dark()", "variable with the values"),
        ("2\nAtom light()\nNegatedAtom light()", "3\nAtom a()\nAtom b()\nAtom c()", "variable with the values"),
        ("push door\n1\n1 0", "push door\n1\n1", "not a task"),
        ("end_rule\n", "", "'' where 'end_rule'"),
        ("3\nbegin_variable\nvar0", "three\nbegin_variable\nvar0", "not a task"),
    ],
)
def test_another_form_is_refused(old: str, new: str, said: str) -> None:
    assert old in TASK
    with pytest.raises(UnknownForm, match=said):
        parse_sas(TASK.replace(old, new))


def test_axioms_derive_layer_by_layer_until_nothing_changes() -> None:
    # 1 follows from 0; 2 from 1; 3, true by default, is false where 2 is true: the next layer
    task = SasTask(
        variables=tuple(Variable(f"v{v}", (), layer) for v, layer in enumerate((-1, 0, 0, 1))),
        initial=(False, False, False, True),
        goal=(),
        operators=(),
        axioms=(Axiom(((1, True),), 2, True), Axiom(((0, True),), 1, True), Axiom(((2, True),), 3, False)),
    )
    derive = Axioms(task).derive
    assert derive(0b0000) == 0b1000
    assert derive(0b0001) == 0b0111
    assert derive(0b0110) == 0b1000  # what was derived before does not count


@given(st.sets(st.integers(0, 200)), st.dictionaries(st.integers(0, 200), st.booleans()))
def test_conditions_hold_where_the_masks_say_so(state: set[int], conditions: dict[int, bool]) -> None:
    about, expected = masks(conditions.items())
    assert (mask(state) & about == expected) == all((v in state) == value for v, value in conditions.items())
