"""What every format of logs gives: groups, and what was left out of them."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collect.source import Complaints, Place, Source

Kind = TypeVar("Kind", bound="Record")
MOST = 2**31 - 1  # what a column of whole numbers holds
Count = Annotated[int, Field(ge=0, le=MOST)]


class Record(BaseModel):
    """A record of a log: only what is used of it, in the types that it must have."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


@dataclass
class Import:
    """One import on its way: the log, and what was noticed.

    `left_out` are groups that cannot be used. `actions` counts how the actions of conversations were found. `horizon`
    stands for the most steps allowed where the log does not say them: those of its longest trajectory.
    """

    source: Source
    left_out: Complaints = field(default_factory=Complaints)
    actions: Counter[str] = field(default_factory=Counter)
    horizon: int | None = None

    def records(self, file: Path, kind: type[Kind]) -> Iterator[tuple[Place, Kind]]:
        """The lines of a JSONL file as records of a kind; those that are none are complained of."""
        for place, line, unended in self.source.lines(file):
            try:
                yield place, kind.model_validate_json(line)
            except ValidationError as error:
                torn = unended and error.errors()[0]["type"] == "json_invalid"
                self.source.refuse(place, reason(error), torn=torn)


def reason(error: ValidationError) -> str:
    """What is wrong with a record, in a few words."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {first['msg']}{more}" if where else f"{first['msg']}{more}"


def named_after(text: str) -> str:
    """A name for the task that a prompt sets: the same for the same prompt."""
    return f"prompt-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"
