"""The files of a log, read record by record in bounded memory; whatever cannot be read is complained of, never dropped
in silence.
"""

import codecs
import csv
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collect.errors import InputError
from collect.printable import printable_line

_SHOWN = 10
_LONGEST_LINE = 1 << 28  # bytes; a longer one is no line of a log, and would not fit into memory for long
_READ_AT_ONCE = 1 << 20
_ROWS_AT_ONCE = 256

Record = dict[str, Any]


@dataclass
class Complaints:
    """What could not be taken over: the first ten, each with where and why, and how many in all."""

    first: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, where: object, why: str) -> None:
        """Complain of one thing."""
        self.total += 1
        if len(self.first) < _SHOWN:
            self.first.append(printable_line(" ".join(f"{where}: {why}".split())))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands: a line of a text file or a row of a table, counted from 1."""

    file: Path
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.file.name}, {self.kind} {self.number}"


@dataclass
class Source:
    """The files of a log in order, and what was found wrong in them.

    `malformed` are records that cannot be read, `torn` names last lines that were cut off in the middle, as a writer
    that was killed leaves them. `progress` is called with the bytes read so far and in all.
    """

    files: tuple[Path, ...]
    progress: Callable[[int, int], None] = lambda done, total: None
    malformed: Complaints = field(default_factory=Complaints)
    torn: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bytes = sum(file.stat().st_size for file in self.files)
        self._read = 0
        self._line_ended = True

    def lines(self, file: Path) -> Iterator[tuple[Place, bytes, bool]]:
        """The lines that are not blank: place, content, and whether it is a last line without its end.

        Only a line feed ends a line: U+2028, U+0085 and their like are text. A byte order mark is no part of the first.
        """
        number = 0
        with file.open("rb") as opened:
            while line := opened.readline(_LONGEST_LINE):
                number += 1
                self._advance(len(line))
                place = Place(file, "line", number)
                if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                    self.malformed.add(place, "longer than 256 MiB; is this JSON Lines?")
                    while line and not line.endswith(b"\n"):
                        line = opened.readline(_READ_AT_ONCE)
                        self._advance(len(line))
                elif (content := line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip():
                    yield place, content, not line.endswith(b"\n")

    def refuse(self, place: Place, why: str, *, torn: bool) -> None:
        """Complain of a line; the last one may be `torn` instead of malformed."""
        if torn:
            self.torn.append(f"{place}: cut off in the middle; left out")
        else:
            self.malformed.add(place, why)

    def csv_rows(self, file: Path) -> Iterator[tuple[Place, Record]]:
        """The rows of a CSV file with a header; every value is text."""
        csv.field_size_limit(_LONGEST_LINE)
        # Undecodable bytes pass as surrogates, so that they spoil their own row only.
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as opened:
            reader = csv.reader(self._counted(opened), strict=True)
            header = next(reader, [])
            if len(set(header)) < len(header):
                raise InputError(f"{file}: two columns have one name; rename one")
            while True:
                place = Place(file, "line", reader.line_num + 1)
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    self._refuse_row(place, reader.line_num, error)
                    continue
                if len(row) != len(header):
                    if row:
                        self.refuse(place, f"{len(row)} values, not {len(header)}", torn=not self._line_ended)
                elif any(_undecodable(value) for value in row):
                    self.malformed.add(place, "not UTF-8")
                else:
                    yield place, dict(zip(header, row, strict=True))

    def parquet_rows(self, file: Path, columns: list[str] | None = None) -> Iterator[tuple[Place, Record]]:
        """The rows of a Parquet file, of all columns or of those given."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        number = 0
        try:
            with pq.ParquetFile(file) as opened:
                for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=columns):
                    for record in batch.to_pylist():
                        number += 1
                        yield Place(file, "row", number), record
                    self._advance(file.stat().st_size * batch.num_rows // max(opened.metadata.num_rows, 1))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            told = str(error).strip().partition("\n")[0]
            raise InputError(f"{file}: cannot be read as Parquet after row {number} ({told})") from error

    def _refuse_row(self, place: Place, last: int, error: csv.Error) -> None:
        """Complain of a row that ends with the line `last`; one that the end of the file cuts off may be torn.

        A quote that is never closed swallows all that follows, so that of several lines nobody knows which were rows.
        """
        unended = "unexpected end" in str(error)
        if unended and last > place.number:
            self.malformed.add(place, f"a quote is not closed: all up to the end of the file, line {last}, is left out")
        else:
            self.refuse(place, str(error), torn=unended)

    def _counted(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self._advance(len(line))
            self._line_ended = line.endswith(("\n", "\r"))
            yield line

    def _advance(self, count: int) -> None:
        self._read += count
        self.progress(self._read, self._bytes)


def _undecodable(value: str) -> bool:
    return not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)


def find_files(path: Path, suffix: str) -> tuple[Path, ...]:
    """The file, or the files of a folder that end with `suffix`, by the numbers in their names.

    Raises InputError when there is none.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise InputError(f"{path}: no such file; give the log to import")
    files = sorted((file for file in path.iterdir() if file.name.endswith(suffix) and file.is_file()), key=_by_number)
    if not files:
        raise InputError(f"{path}: holds no file that ends with {suffix}; give the log to import")
    return tuple(files)


def fingerprint(file: Path) -> dict[str, Any]:
    """What tells a file from another: name, bytes, SHA-256."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"name": file.name, "bytes": file.stat().st_size, "sha256": digest}


def _by_number(file: Path) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", file.stem)], file.name
