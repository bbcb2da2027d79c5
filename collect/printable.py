"""Text of models, games and files made fit to be printed in one line."""


def printable_line(text: str) -> str:
    """The text in one line, with U+FFFD for all that could move a terminal's cursor, change its state, hide or reorder
    other text, or that no encoding holds. Tabs stay.
    """
    line = " ".join(text.splitlines())
    return "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line)
