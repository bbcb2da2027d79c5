"""Text is made fit to be shown: nothing hides in it, nothing is lost without a word."""

from hypothesis import given
from hypothesis import strategies as st

from reports.page import number, slug
from reports.tables import sheet
from reports.visible import visible


@given(st.text(st.characters(), max_size=200))
def test_what_is_shown_is_printable_and_printable_text_is_shown_as_it_is(text: str) -> None:
    shown = visible(text)
    assert all(character.isprintable() or character == "\n" for character in shown)
    if all(character.isprintable() or character == "\n" for character in text):
        assert shown == text


def test_controls_are_written_out_and_the_rest_of_a_long_text_is_counted() -> None:
    assert visible("a\u202eb\x00\n") == "a⟨U+202E⟩b⟨U+0000⟩\n"
    assert visible("x" * 4_100) == "x" * 4_000 + " … (100 more characters)"
    assert visible("\u202e" * 3, most=2) == "⟨U+202E⟩⟨U+202E⟩ … (1 more characters)"


@given(st.text(max_size=80))
def test_a_slug_is_a_name_of_a_file_and_an_id(text: str) -> None:
    assert set(slug(text)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
    assert slug(text)


def test_a_table_has_null_where_nothing_is_known_and_visible_text() -> None:
    rows = sheet("t", "T", "", [{"a": float("nan"), "b": "\u2066x", "c": None}, {"a": 1, "b": None, "c": None}]).rows
    assert rows.rows() == [(None, "⟨U+2066⟩x", None), (1.0, None, None)]


def test_numbers_are_shown_short() -> None:
    shown = [number(value) for value in (None, True, 3, 12_345, 0.123456, 2.0, 12_345.6, "x")]
    assert shown == ["n/a", "yes", "3", "12,345", "0.1235", "2", "12,346", "x"]
