"""One session of a training run: everything that it needs is opened, trained with, and closed again."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collect.collection import choose_games, facts
from collect.engine import Engine, open_engine
from collect.environment import Environments, open_environments
from collect.errors import InputError
from collect.games import Game
from collect.policy import Policy, find_policy, load_tokenizer
from collect.prompt import Prompt
from collect.rollout import Settings as RolloutSettings
from collect.store import RunWriter, check_run, is_run, open_run, read_run, scan
from train import checkpoint
from train.checkpoint import Progress
from train.evaluation import Evaluator, check_held_out
from train.gating import begin, check_gate, find_gate
from train.layout import find_layout
from train.learner import Learner
from train.log import Log
from train.loop import Screen, Training, initial
from train.rolling import Frozen, Live, Source, whole_groups
from train.schedule import Schedule
from train.settings import CHANGEABLE, Settings, brief, flag_of, gather, resolve
from train.trackers import check_trackers, open_trackers

_COMMAND = "train"
_LEARNED_FROM = "learned_from"
# What a frozen run settles: its groups were rolled out so.
_OF_A_RUN = ("model", "group_size", "horizon", "temperature", "max_tokens", "prompt", "show_commands")


@dataclass(frozen=True)
class Plan:
    """A run that is to be trained: its resolved settings, its policy, and its identity as run.json holds it."""

    settings: Settings
    policy: Policy
    configuration: dict[str, Any]


def plan(config: Path | None, flags: Mapping[str, Any], say: Callable[[str], None]) -> Plan:
    """What is to be trained, from a file and flags, with the machine's defaults; `say` is told of a gate that is found.

    Raises:
        InputError: an option is wrong, or names what is not there.
        MissingDependency: a package that is needed is not installed.
    """
    settings = gather(config, flags)
    if settings.from_run is not None:
        source = Path(settings.from_run)
        settings = gather(config, _settled(source, settings) | dict(flags))
        if read_run(source).configuration.get("top_p", 1.0) != 1.0:
            say(f"--from {source}: sampled with top-p under 1, which importance weights know nothing of")
    policy = find_policy(settings.model, settings.adapter)
    settings = resolve(settings, policy)
    if settings.gate is not None and not Path(settings.gate).is_file():
        raise InputError(f"--gate {settings.gate}: no such file; sr calibrate writes one")
    settings.learner()
    check_trackers(settings.tensorboard, settings.wandb)
    settings, lines = find_gate(settings, settings.configuration(policy))
    for line in lines:
        say(line)
    configuration = settings.configuration(policy) | {_LEARNED_FROM: _learned_from(settings)}
    check_gate(settings, configuration)
    return Plan(settings, policy, configuration)


def planned_again(run: Path, flags: Mapping[str, Any]) -> Plan:
    """What a run is being trained on, from its run.json; of the flags, those that may change take effect.

    Raises:
        InputError: no run of sr train, or a flag that says something else than the run.
    """
    there = read_run(run)
    options = there.facts.get("options")
    if there.command != _COMMAND or not isinstance(options, dict):
        raise InputError(f"{run}: holds a run of sr {there.command}, not of sr {_COMMAND}; nothing to go on with")
    return continued(options, there.configuration, flags)


def continued(options: Mapping[str, Any], configuration: Mapping[str, Any], flags: Mapping[str, Any]) -> Plan:
    """What was planned with these options and has this identity; of the flags, those that may change take effect.

    Raises:
        InputError: a flag says something else than the options; something that they name is not there any more.
    """
    before = gather(None, options)
    changed = before.model_copy(update=gather(None, {**options, **flags}).model_dump(include={*flags, *CHANGEABLE}))
    for name in flags:
        old, new = getattr(before, name), getattr(changed, name)
        if name not in CHANGEABLE and old != new:
            told = f"{flag_of(name)} {brief(new)}: the run has {brief(old)}"
            raise InputError(f"{told}; a resumed run keeps its settings")
    check_trackers(changed.tensorboard, changed.wandb)
    if configuration.get(_LEARNED_FROM, now := _learned_from(before)) != now:
        named = f"--from {before.from_run}" if before.from_run else f"--games {before.games}"
        raise InputError(f"{named}: does not hold what the run began with; restore that, or begin another run")
    return Plan(changed, find_policy(changed.model, changed.adapter), dict(configuration))


def _learned_from(settings: Settings) -> str:
    """What a run learns from, as a SHA-256 of names: those of its games, or of the groups of a frozen run.

    The order of games and groups, and so which an iteration takes, is drawn over all of them: were there others later,
    some would be learned from twice.
    """
    if settings.from_run is not None:
        names = [task.group_id for task in whole_groups(Path(settings.from_run))]
    else:
        names = [game.id for game in choose_games(settings.games)[0]]
    return hashlib.sha256("\n".join(sorted(names)).encode("utf-8", "surrogateescape")).hexdigest()


def check_new(run: Path) -> None:
    """Raise `InputError` where a new run would overwrite another."""
    if is_run(run):
        raise InputError(f"{run}: holds a run already; give --resume to go on with it, or another folder")


def train(plan: Plan, run: Path, screen: Screen) -> None:
    """Train the run, from its beginning or from its newest checkpoint, to its end.

    Under torchrun every process calls this; all but the first only help the learner.

    Raises:
        InputError: something that was named is not there or does not fit; nothing was written yet, or it was kept.
        SelectiveRolloutError: every group of an iteration failed, or the disk refuses; what was done is kept.
    """
    settings, policy, layout = plan.settings, plan.policy, find_layout()
    if layout.rank > 0:
        follow(Learner(policy, settings.learner(), layout))
        return
    check_run(run, plan.configuration, command=_COMMAND)
    if checkpoint.newest(run) is None:
        _check_unchanged(plan)
    parts = _Parts.of(plan)
    learner = Learner(policy, settings.learner(), layout)
    with ExitStack() as stack:
        stack.callback(learner.close)
        writer = stack.enter_context(_open(plan, run))
        progress = _progress(plan, run, learner, screen)
        if progress.iteration >= (settings.iterations or 0):
            screen.say(f"all {settings.iterations} iterations are done; more: --resume --iterations")
            return
        learner.sleep()
        engine = _engine(plan, run, progress)
        if engine is not None:
            stack.callback(engine.close)
        trackers = open_trackers(
            run, progress.iteration, settings.tensorboard, settings.wandb, plan.configuration | {"run": str(run)}
        )
        log = Log(run, progress.iteration, trackers)
        stack.callback(log.close)
        training = Training(
            settings,
            policy,
            writer,
            parts.source(writer, engine),
            learner,
            engine,
            parts.evaluator(engine),
            log,
            screen,
            progress,
        )
        asyncio.run(training.run(settings.iterations or 0))


def _check_unchanged(plan: Plan) -> None:
    """Raise `InputError` where the gate or the adapter to begin with is not what was planned; checkpoints hold both."""
    settings, planned = plan.settings, plan.configuration
    gate_there = settings.gate is None or Path(settings.gate).is_file()
    if not gate_there or settings.gate_fingerprint != planned["gate"]:
        raise InputError(f"--gate {settings.gate}: is not what it was when the run was planned; restore it")
    if plan.policy.fingerprint != planned["adapter"]:
        raise InputError(f"--adapter {settings.adapter}: is not what it was when the run was planned; restore it")


def follow(learner: Learner) -> None:
    """Help another process to learn, until it is done."""
    try:
        learner.follow()
    finally:
        learner.close()


@dataclass(frozen=True)
class _Parts:
    """What rollouts need; `games` are played when training, `held_out` ones when evaluating."""

    settings: Settings
    environments: Environments
    prompt: Prompt
    games: Sequence[Game]
    held_out: Sequence[Game]

    @classmethod
    def of(cls, plan: Plan) -> "_Parts":
        settings = plan.settings
        assert settings.prompt is not None
        environments = open_environments(settings.environment, print)
        prompt = Prompt(load_tokenizer(plan.policy), settings.prompt, bool(settings.show_commands))
        games = [] if settings.from_run else choose_games(settings.games)[0]
        held_out = choose_games(settings.eval_on)[0] if settings.eval_every else []
        learned_from = {game.id for game in games}
        if settings.from_run is not None and held_out:
            learned_from = set(scan(Path(settings.from_run), "groups").select("game_id").collect()["game_id"])
        check_held_out(held_out, learned_from)
        return cls(settings, environments, prompt, games, held_out)

    def source(self, run: RunWriter, engine: Engine | None) -> Source:
        settings = self.settings
        assert settings.groups is not None
        if settings.from_run is not None:
            return Frozen(Path(settings.from_run), settings.groups, settings.seed, run)
        assert engine is not None
        schedule = Schedule(self.games, settings.groups, settings.seed)
        return Live(schedule, engine, self.environments, self.prompt, self._rollout, run)

    def evaluator(self, engine: Engine | None) -> Evaluator | None:
        if engine is None or not self.settings.eval_every:
            return None
        count = self.settings.eval_games or len(self.held_out)
        return Evaluator(self.held_out, count, engine, self.environments, self.prompt, self._rollout)

    @property
    def _rollout(self) -> RolloutSettings:
        settings = self.settings
        return RolloutSettings(
            settings.group_size, settings.horizon, settings.sampling, settings.concurrency, settings.seed
        )


def _open(plan: Plan, run: Path) -> RunWriter:
    told = facts(plan.policy) | {"options": plan.settings.options(plan.policy)}
    return open_run(run, plan.configuration, told, command=_COMMAND)


def _progress(plan: Plan, run: Path, learner: Learner, screen: Screen) -> Progress:
    """Where the run is; the learner takes up its state."""
    newest = checkpoint.newest(run)
    if newest is not None:
        progress = checkpoint.load(newest)
        learner.load_state(checkpoint.learner_state(newest))
        screen.say(f"going on after iteration {progress.iteration}")
        return progress
    gating, gate, lines = begin(plan.settings, plan.configuration)
    for line in lines:
        screen.say(line)
    return initial(gating, gate, run)


def _engine(plan: Plan, run: Path, progress: Progress) -> Engine | None:
    """The engine with the adapter of now; none where nothing is rolled out."""
    if plan.settings.from_run is not None and not plan.settings.eval_every:
        return None
    policy = plan.policy
    if progress.adapter is not None:
        policy = replace(policy, adapter=run / progress.adapter, version=progress.iteration)
    return open_engine(plan.settings.engine, policy, plan.settings.deterministic, lora_rank=plan.settings.rank)


def _settled(source: Path, settings: Settings) -> dict[str, Any]:
    """The settings that a frozen run has, and the adapter that rolled it out.

    The model may be named otherwise, for it may lie elsewhere by now. InputError where anything else is.
    """
    there = read_run(source)
    settled = {name: there.configuration[name] for name in _OF_A_RUN if there.configuration.get(name) is not None}
    for name, value in settled.items():
        asked = getattr(settings, name)
        if name != "model" and name in settings.model_fields_set and asked != value:
            raise InputError(f"{flag_of(name)} {asked}: {source} was rolled out with {value}; drop it")
    adapter = there.facts.get("adapter_path")
    if settings.adapter is None:
        settled["adapter"] = "none" if adapter is None else adapter
    return settled
