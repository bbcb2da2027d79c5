"""Standard output as calibrate's commands write it: whatever text is in it, and wherever it goes."""

import math
import sys
from collections.abc import Sequence
from copy import copy

import rich.console
from rich.console import RenderableType
from rich.measure import measure_renderables
from rich.table import Column, Table
from rich.text import Text

from collect.printable import printable_line, write_nowhere

_NO_LIMIT = 100_000  # columns, where rich itself is not to fold anything


class Console:
    """Standard output; text of models and games is never read as markup, and of what was not made to be printed
    nothing gets there.

    On a terminal a table that is too wide has its cells broken at spaces, never in a number; one that is still too
    wide is left to the terminal. In a file or a pipe a row is a line.
    """

    def __init__(self) -> None:
        self._rich = rich.console.Console(markup=False, highlight=False, emoji=False)
        self._width = self._rich.width if sys.stdout.isatty() else math.inf
        self._rich.width = _NO_LIMIT

    def print(self, what: str | Table) -> None:
        """Print a text as one line, or a table of texts.

        When nobody reads any more, as behind `| head`, goes on in silence: what the command is to write, it writes.

        Raises:
            InputError: Standard output cannot be written to.
        """
        if isinstance(what, str):
            _write(printable_line(what) + "\n")
            return
        table = _cleaned(what)
        self._narrow(table)
        # Rich has a way of its own with a pipe that nobody reads: let it only draw.
        with self._rich.capture() as drawn:
            self._rich.print(table)
        _write(drawn.get())

    def _narrow(self, table: Table) -> None:
        """Break cells, those of the widest column first, until the table fits or there is nothing left to break."""
        breakable = list(table.columns)
        for column in breakable:
            column.width = measure_renderables(self._rich, self._rich.options, _texts(column)).maximum
        while breakable and self._rich.measure(table).maximum > self._width:
            widest = max(breakable, key=lambda column: column.width or 0)
            narrower = self._broken(widest)
            if narrower is None:
                breakable.remove(widest)
            else:
                widest.width = narrower

    def _broken(self, column: Column) -> int | None:
        """The next smaller width that a column can have whose cells are broken at spaces only."""
        width = (column.width or 0) - 1
        if width < 1:
            return None
        texts = _texts(column)
        lines = [line for text in texts for line in text.wrap(self._rich, width)]
        if _words(lines) != _words(texts):
            return None
        for line in lines:
            line.rstrip()
        return max(line.cell_len for line in lines)


def _cleaned(table: Table) -> Table:
    """The same table, its cells made fit to be printed; the headers are this package's own."""
    cleaned = copy(table)
    cleaned.columns = [column.copy() for column in table.columns]
    cleaned.rows = []
    for row in zip(*(column.cells for column in table.columns), strict=True):
        cleaned.add_row(*map(_printable, row))
    return cleaned


def _printable(cell: RenderableType) -> Text:
    if not isinstance(cell, Text):
        return Text(printable_line(str(cell)))
    text = cell.copy()  # and so its style
    text.plain = printable_line(cell.plain)
    return text


def _texts(column: Column) -> list[Text]:
    return [cell if isinstance(cell, Text) else Text(str(cell)) for cell in (column.header, *column.cells)]


def _words(texts: Sequence[Text]) -> list[str]:
    return [word for text in texts for word in text.plain.split()]


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        write_nowhere(error)
