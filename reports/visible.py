"""Text of models, games and files, made fit to be shown: nothing in it is run, moves other text, or hides."""

MOST = 4_000  # characters of one text that are shown


def visible(text: str, most: int = MOST) -> str:
    """The text with every character that cannot be seen (controls, bidirectional overrides, zero-width ones) written
    out as ⟨U+202E⟩, and cut off after `most` characters, which is then said. Newlines stay.
    """
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() or c == "\n" else f"⟨U+{ord(c):04X}⟩" for c in shown)
    return shown if len(text) <= most else f"{shown} … ({len(text) - most:,} more characters)"
