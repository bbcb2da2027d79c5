"""Writing files so that whatever happens they are whole or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all.

    Yields a temporary path in the same folder. When the block ends, what was written there is fsynced and renamed to
    `path`, and the folder is fsynced; when the block raises, it is deleted and `path` stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # left by a process of the same number that was killed, as is usual in containers
    try:
        yield temporary
        fsync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Write a folder whole or not at all.

    Yields an empty temporary folder beside it. When the block ends, the files written there are fsynced and the folder
    is renamed to `path`; a folder that was there is deleted just before. When the block raises, the temporary one is
    deleted and `path` stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            fsync(file)
        fsync(temporary)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Have the disk hold what was written to a file, or which names a folder holds, before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
