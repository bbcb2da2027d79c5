"""The error model of the whole project.

Every failure belongs to exactly one boundary, is classified there, and is reported once.

- **The user's input** (flags, files, folders, tables): `InputError`. Its message is one line that says what was wrong,
  where (file, row, flag) and what to do. The command line prints it and exits with 2; nothing has been written.
- **A package that is not installed**: `MissingDependency`, an `InputError` whose message is the install command.
- **A game** that crashes, hangs or cannot be loaded: `EnvironmentFault`.
- **A language-model engine** that fails on a request: `EngineFault`.

The last two are facts about one attempt at one group, not about the program: the rollout loop catches them, records the
attempt in `errors/` of the run, and owes the group again on resume. An error is never a reward of 0. Anything that is
none of these is a bug and is left to crash loudly, so that it is found.
"""


class SelectiveRolloutError(Exception):
    """Base of every error this project raises on purpose; `exit_code` is what the command line exits with."""

    exit_code = 1


class InputError(SelectiveRolloutError):
    """The user's input is wrong; the message is one line: what, where, and what to do."""

    exit_code = 2


class MissingDependency(InputError):
    """An optional package is needed and absent; the message carries the exact install command."""

    def __init__(self, purpose: str, install: str) -> None:
        super().__init__(f"{purpose} is not installed; run: {install}")


class EnvironmentFault(SelectiveRolloutError):
    """A game crashed, hung or could not be loaded."""


class EngineFault(SelectiveRolloutError):
    """An engine failed on a request."""
