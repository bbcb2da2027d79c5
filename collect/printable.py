"""What is printed: text of models, games and files, and standard output that may be gone."""

import os
import sys

from collect.errors import InputError


def printable_line(text: str) -> str:
    """The text in one line, with U+FFFD for all that could move a terminal's cursor, change its state, hide or reorder
    other text, or that no encoding holds. Tabs stay.
    """
    line = " ".join(text.splitlines())
    return "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line)


def write_nowhere(error: OSError) -> None:
    """Send the rest of standard output nowhere, which failed with `error`; also what the interpreter writes as it ends.

    Raises:
        InputError: it was not that the reader of a pipe has seen enough, as in `sr query … | head`.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        raise InputError(f"standard output: cannot be written to ({error.strerror}); send it elsewhere") from error
