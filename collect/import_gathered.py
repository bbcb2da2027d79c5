"""Groups put together from the parts that a log scatters."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from collect.import_groups import Import
from collect.logged import LoggedGroup, LoggedStep, LoggedTrajectory
from collect.spool import Spool

Parts = Sequence[tuple[str, Sequence[Any]]]  # the trajectories of a group: their names and their parts


def gathered(log: Import, spool: Spool, group: Callable[[str, Parts], LoggedGroup]) -> Iterator[LoggedGroup]:
    """The groups of the most frequent size, put together by `group`, which raises ValueError for one that is broken.

    A gate is fitted at one size, and trainers drop trajectories whose rollout failed. Of sizes equally frequent the
    largest counts. Groups of others are complained of.
    """
    sizes = {size: count for size, count in spool.sizes().items() if size >= 2}
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    log.horizon = spool.longest()
    for name, parts in spool.groups():
        if len(parts) != usual:
            others = f"; most groups have {usual}" if usual else ""
            log.left_out.add(f"group {name}", f"{len(parts)} trajectories{others}")
            continue
        try:
            yield group(name, parts)
        except ValueError as error:
            log.left_out.add(f"group {name}", str(error))


def packed(steps: Sequence[LoggedStep]) -> list[list[Any]]:
    """Steps as JSON values."""
    return [[step.action, step.observation, step.reply, step.reward, step.logprobs] for step in steps]


def unpacked(steps: Sequence[Sequence[Any]]) -> Iterator[LoggedStep]:
    """The steps that were `packed`."""
    for action, observation, reply, reward, logprobs in steps:
        yield LoggedStep(action, observation, reply, reward, None if logprobs is None else tuple(logprobs))


def of_packed(parts: Sequence[Any]) -> LoggedTrajectory:
    """A trajectory of parts that each are (reward, packed steps): the last one's reward is the final one."""
    return LoggedTrajectory(parts[-1][0], tuple(step for _, steps in parts for step in unpacked(steps)))
