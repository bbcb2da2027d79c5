"""Translations of games on disk, each made once for a user, in a process of its own.

A translation lies in the user's cache as gzipped JSON, under a hash of what it was made from: the game's domain,
problem and grammar, and the versions of the translators. It is written under a temporary name and renamed, so any
number of processes may make the same one at once, and one that is damaged is made again.
"""

import gc
import gzip
import hashlib
import os
import signal
import zlib
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from collect.cache import cache_folder
from collect.errors import EnvironmentFault, InputError
from collect.files import replacing
from collect.games import GameFile, read_game_file
from collect.processes import end_with, join, start
from collect.sas import UnknownForm
from collect.translation import Translation, identity, translate

_SECONDS = 300.0  # for a translation to be made
_MADE, _UNKNOWN_FORM, _FAILED = b"T", b"U", b"F"  # what the process's answer begins with

_json = TypeAdapter(Translation)


def load_translation(game_path: Path) -> Translation:
    """The translation of a game, from the cache, else made now; a thread may wait here while others go on.

    Raises `UnknownForm` where the game has none, and `EnvironmentFault` where the file is no game or the process that
    translates it dies.
    """
    try:
        game = read_game_file(game_path)
    except InputError as error:
        raise EnvironmentFault(str(error)) from error
    kept = _kept(game)
    translation = read(kept)
    if translation is None:
        packed = _made(game_path)
        translation = _unpacked(packed)
        with suppress(OSError):  # without a cache the game is played all the same
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as temporary:
                temporary.write_bytes(packed)
    return translation


def read(path: Path) -> Translation | None:
    """The translation in a file of the cache; None where there is none, or it is damaged."""
    with suppress(OSError, EOFError, zlib.error, ValidationError):  # a bad gzip file is an OSError
        return _unpacked(path.read_bytes())
    return None


def _kept(game: GameFile) -> Path:
    parts = (game.pddl_domain, game.pddl_problem, game.grammar, identity())
    digest = hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()
    return cache_folder("translations", f"{digest}.json.gz")


def _unpacked(packed: bytes) -> Translation:
    return _json.validate_json(gzip.decompress(packed))


def _made(game_path: Path) -> bytes:
    """The packed translation, as a process of its own makes it."""
    own, its = Pipe(duplex=False)
    with own:
        with its:
            process = start(_translate, game_path.resolve(), its)
        try:
            kind, said = _received(own)
        finally:
            process.kill()
            join(process)
    if kind == _UNKNOWN_FORM:
        raise UnknownForm(said.decode())
    if kind == _FAILED:
        raise EnvironmentFault(f"{game_path}: cannot be translated: {said.decode()}")
    return said


def _received(own: Connection) -> tuple[bytes, bytes]:
    if not own.poll(_SECONDS):
        return _FAILED, b"its process took too long"
    try:
        message = own.recv_bytes()
    except EOFError:
        return _FAILED, b"its process died"
    return message[:1], message[1:]


# What follows runs in that process.


def _translate(game_path: Path, answer: Connection) -> None:
    end_with(os.getppid())
    gc.disable()  # it ends before any garbage could matter
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        packed = gzip.compress(_json.dump_json(translate(read_game_file(game_path))), compresslevel=6, mtime=0)
    except UnknownForm as error:
        answer.send_bytes(_UNKNOWN_FORM + str(error).encode())
    except Exception as error:
        answer.send_bytes(_FAILED + f"{type(error).__name__}: {error}".encode())
    else:
        answer.send_bytes(_MADE + packed)
