"""What is printed: text of models, games and files, and standard streams that may be gone."""

import os
import sys
from pathlib import Path

from collect.errors import InputError


def printable_line(text: str) -> str:
    """The text in one line, with U+FFFD for all that could move a terminal's cursor, change its state, hide or reorder
    other text, or that no encoding holds. Tabs stay.
    """
    line = " ".join(text.splitlines())
    return "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line)


def open_closed_streams() -> None:
    """Have standard streams that were closed from the start, as by `sr … >&-`, read and write nothing.

    To be called first: the next file that is opened takes the place of the first closed one, and what is then printed
    by a library would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 (it stays open)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def say(line: str) -> None:
    """Print a line on standard error. Where that cannot be written to, it and all that follows go nowhere: what is
    said beside the work is no reason to end it.
    """
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def write_nowhere(error: OSError) -> None:
    """Send the rest of standard output nowhere, which failed with `error`; also what the interpreter writes as it ends.

    Raises:
        InputError: it was not that the reader of a pipe has seen enough, as in `sr query … | head`.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        raise InputError(f"standard output: cannot be written to ({error.strerror}); send it elsewhere") from error
