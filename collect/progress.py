"""How a long command says how far it is: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from collect.printable import say

_EVERY = 15.0  # seconds between two lines where there is no terminal


class Update(Protocol):
    """Say that `done` of `total` are done; `note` is shown beside it."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Show it."""
        ...


@contextmanager
def counted(label: str, unit: str, *, quiet: bool = False, patience: float = 0.0) -> Iterator[Update]:
    """Show work that counts up on stderr, with rate and time left. Yields what to call with (done, of how many, note).

    The label is printed at the first call, so that work which turns out to be done already says nothing; nor does work
    that is done within `patience` seconds.
    """
    begun = time.monotonic() if patience else None
    if quiet:
        yield lambda done, total, note="": None
    elif sys.stderr.isatty():
        with _bar(label, unit, begun) as update:
            yield _patient(update, patience)
    else:
        yield _patient(_lines(label, unit, begun), patience)


def _patient(update: Update, patience: float) -> Update:
    speaks = time.monotonic() + patience

    def later(done: int, total: int, note: str = "") -> None:
        if time.monotonic() >= speaks:
            update(done, total, note)

    return later if patience else update


@contextmanager
def _bar(label: str, unit: str, begun: float | None) -> Iterator[Update]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None, visible=False, rate="", note="")

        def update(done: int, total: int, note: str = "") -> None:
            nonlocal begun
            if not progress.tasks[0].visible:
                progress.console.print(label, highlight=False)
                begun = begun or time.monotonic()
            progress.update(task, completed=done, total=total, visible=True, rate=_rate(done, begun), note=note)

        yield update


def _lines(label: str, unit: str, begun: float | None) -> Update:
    spoken = 0.0

    def update(done: int, total: int, note: str = "") -> None:
        nonlocal begun, spoken
        now = time.monotonic()
        begun = begun or now
        if not spoken:
            say(label)
        elif now - spoken < _EVERY and done < total:
            return
        spoken = now
        if done or note:
            left = f", {_rate(done, begun)}, {(now - begun) / done * (total - done):.0f} s left" if done else ""
            say(f"{done} of {total} {unit}{left}{note and ', '}{note}")

    return update


def _rate(done: int, begun: float | None) -> str:
    return f"{done / max(time.monotonic() - begun, 1e-9):.2f}/s" if done and begun else ""
