"""Groups whose parts lie scattered in a log: kept on disk until all of it has been read, so that memory stays small."""

import json
import sqlite3
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Any, Self

_AT_ONCE = 2000
_CACHE_KIB = 65_536


class Spool:
    """Parts of trajectories, of groups, in the order in which they were added; a temporary file, gone in the end.

    It lies where SQLite keeps temporary files: $SQLITE_TMPDIR, $TMPDIR or /var/tmp.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{_CACHE_KIB};"
            "CREATE TABLE part(grp INTEGER, trajectory TEXT, steps INTEGER, content TEXT); BEGIN"
        )
        self._groups: dict[str, int] = {}
        self._waiting: list[tuple[int, str, int, str]] = []

    def add(self, group: str, trajectory: str, steps: int, content: Any) -> None:
        """Keep a part of a trajectory: of how many steps, and JSON values that tell the rest."""
        number = self._groups.setdefault(group, len(self._groups))
        self._waiting.append((number, trajectory, steps, json.dumps(content)))
        if len(self._waiting) >= _AT_ONCE:
            self._write()

    def sizes(self) -> dict[int, int]:
        """How many groups there are of each size."""
        return dict(
            self._rows(
                "SELECT size, count(*) FROM (SELECT count(DISTINCT trajectory) AS size FROM part GROUP BY grp) "
                "GROUP BY size"
            )
        )

    def longest(self) -> int:
        """The steps of the longest trajectory; 0 without one."""
        sql = "SELECT max(length) FROM (SELECT sum(steps) AS length FROM part GROUP BY grp, trajectory)"
        ((longest,),) = self._rows(sql)
        return longest or 0

    def groups(self) -> Iterator[tuple[str, list[tuple[str, list[Any]]]]]:
        """Each group by its first part: its name, and its trajectories by theirs, each with its parts in order."""
        rows = self._rows("SELECT grp, trajectory, content FROM part ORDER BY grp, rowid")
        for name, (_, parts) in zip(self._groups, groupby(rows, itemgetter(0)), strict=True):
            trajectories: dict[str, list[Any]] = {}
            for _, trajectory, content in parts:
                trajectories.setdefault(trajectory, []).append(json.loads(content))
            yield name, list(trajectories.items())

    def _rows(self, sql: str) -> Iterator[Any]:
        self._write()
        yield from self._database.execute(sql)

    def _write(self) -> None:
        self._database.executemany("INSERT INTO part VALUES (?, ?, ?, ?)", self._waiting)
        self._waiting = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._database.close()
