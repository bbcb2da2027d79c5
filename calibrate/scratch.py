"""Arrays on disk, for as long as they are used: the signals of a million groups would be gigabytes of memory."""

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from collect.errors import InputError


class Scratch(Mapping[str, NDArray[np.float64]]):
    """Arrays of doubles by name, all (N, S), zero at first, in an unnamed file that is gone with the object or process.

    What a lookup gives is a map of the file, column by column: what is written to it stays, and it is memory only while
    it is held.
    """

    def __init__(self, names: Iterable[str], shape: tuple[int, int]) -> None:
        """Take up the room on disk.

        Raises:
            InputError: there is not so much.
        """
        self._places = {name: place for place, name in enumerate(names)}
        self._shape = shape
        self._bytes = 8 * shape[0] * shape[1]
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the object)
            # Written, since a map of a file with holes on a full disk would kill the process.
            for _ in self._places:
                self._file.write(np.zeros(shape).data)
            self._file.flush()
        except OSError as error:
            raise InputError(
                f"temporary files of {math.ceil(len(self._places) * self._bytes / 1e6):,} MB cannot be written "
                f"({error.strerror}); set TMPDIR to a roomy folder"
            ) from error

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """The array of this name."""
        return np.memmap(self._file, np.float64, "r+", self._places[name] * self._bytes, self._shape, order="F")

    def __iter__(self) -> Iterator[str]:
        """The names, in the order they were given."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many arrays there are."""
        return len(self._places)

    def rows(self, there: NDArray[np.bool_]) -> "Scratch":
        """A new one of the rows `there` (N,)."""
        kept = Scratch(self, (int(there.sum()), self._shape[1]))
        for name in self:
            kept[name][:] = self[name][there]
        return kept

    def forget(self, names: Iterable[str]) -> None:
        """Leave arrays out."""
        for name in names:
            del self._places[name]
