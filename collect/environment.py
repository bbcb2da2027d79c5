"""The G instances of one game, each isolated from the others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observation:
    """What a game says after a reset or a command. `reward` is what this very command earned (0 at a reset)."""

    text: str
    admissible_commands: tuple[str, ...]
    reward: float
    won: bool
    done: bool
