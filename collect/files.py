"""Writing files so that whatever happens they are whole or not there."""

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OLD = 3600.0  # seconds without a change after which nobody is writing a temporary file any more


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all.

    Yields a temporary path in the same folder. When the block ends, what was written there is fsynced and renamed to
    `path`, and the folder is fsynced; when the block raises, it is deleted and `path` stays as it was. What killed
    writers of `path` left is deleted too, once it is old. Where `path` is a symbolic link, all of this is of the file
    that it points at, there or not, and the link stays.
    """
    path = end_of_link(path)
    _clear_up(path)
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
    deleted and `path` stays as it was. What killed writers of `path` left is deleted too, once it is old.
    """
    _clear_up(path)
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


def end_of_link(path: Path) -> Path:
    """What a symbolic link points at in the end, there or not; any other path as it is. OSError where it goes round."""
    if not path.is_symlink():
        return path
    end = Path(os.path.realpath(path))
    if end.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return end


def fsync(path: Path) -> None:
    """Have the disk hold what was written to a file, or which names a folder holds, before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _clear_up(path: Path) -> None:
    """Delete what writers of this path left that are gone, each under the number of its process."""
    left = re.compile(rf"\.{re.escape(path.name)}\.([0-9]{{1,9}})\.tmp")
    with suppress(OSError):  # what cannot be cleared up hinders nobody who writes
        for leftover in path.parent.iterdir():
            match = left.fullmatch(leftover.name)
            # On a shared disk, or from another container, the number says nothing of the writer: age does.
            if match and not _runs(int(match[1])) and time.time() - _changed(leftover) > _OLD:
                _delete(leftover)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another user
    return True


def _changed(path: Path) -> float:
    """When a file was changed last, or a folder or anything in it."""
    return max(found.lstat().st_mtime for found in (path, *path.rglob("*")))


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
