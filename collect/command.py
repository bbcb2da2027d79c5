"""Commands: sr collect, sr games."""

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collect.errors import InputError, SelectiveRolloutError
from collect.options import RUNS, Commands, Debug, Quiet

if TYPE_CHECKING:
    from collect.collection import Collection, Gating, Tally
    from collect.progress import Update
    from collect.watch import Watcher

games_app = typer.Typer(cls=Commands, help="Make and list ALFWorld games.")


@games_app.command("make", short_help="Make games, each played and won before it is shipped.")
def make(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder for the games; one made by the same command is completed.")
    ],
    train: Annotated[int, typer.Option(min=0, help="Games of the train split.")] = 120,
    valid_seen: Annotated[int, typer.Option(min=0, help="Other games in the rooms of the train split.")] = 60,
    valid_unseen: Annotated[int, typer.Option(min=0, help="Games in rooms that no other split has.")] = 60,
    seed: Annotated[int, typer.Option(help="The same seed gives the same games, byte for byte.")] = 0,
    share: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=SHARE", help="Share of a task type, repeatable; the others share the rest alike."),
    ] = None,
    receptacles: Annotated[
        str,
        typer.Option(help="Most receptacles of a type in a room, by turns, separated by commas; `all` for no limit."),
    ] = "4,8,all",
    targets: Annotated[int, typer.Option(min=1, help="Most instances of the wanted object; fewer are harder.")] = 1,
    instances: Annotated[int, typer.Option(min=1, help="Most instances of any other type of object.")] = 2,
    absent: Annotated[float, typer.Option(help="Probability that a room lacks a type of object it could hold.")] = 0.25,
    hidden: Annotated[float, typer.Option(help="Probability that the wanted object starts behind a door.")] = 0.5,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make ALFWorld games in ALFWorld's own layout, each played and won before it is shipped."""
    from collect.generator import make_games
    from collect.progress import counted
    from collect.recipe import Difficulty, Recipe, full_shares

    counts = {"train": train, "valid_seen": valid_seen, "valid_unseen": valid_unseen}
    if not any(counts.values()):
        raise InputError("no games asked for; give --train, --valid-seen or --valid-unseen a number above 0")
    caps = [_cap(cap) for cap in receptacles.split(",")]
    recipe = Recipe(
        seed=seed,
        shares=full_shares(dict(_share(text) for text in share or [])),
        difficulties=tuple(Difficulty(cap, targets, instances, absent, hidden) for cap in caps),
    )
    with counted(f"making games in {out}", "games", quiet=quiet) as progress:
        make_games(out, counts, recipe, progress=progress)
    if not quiet:
        list_(out)


@games_app.command("list", short_help="Count the games that are found, and say where.")
def list_(
    games: Annotated[
        Path | None,
        typer.Option(help="Folder of games; by default the downloaded ones, else those made in the user's cache."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Count the games that are found, by split and task type, and say where."""
    from rich.console import Console
    from rich.table import Table

    from collect.games import TASK_TYPES, find_sources, read_games

    sources = find_sources(games)
    if not sources:
        typer.echo("no games yet: `sr games make FOLDER` makes any number; what needs games makes some at first use")
        return
    found = {split or "games": read_games(source.folder, split) for split, source in sources.items()}
    table = Table("task type")
    for split in found:
        table.add_column(split, justify="right")
    for task_type in TASK_TYPES:
        counts = (sum(game.task_type == task_type for game in split_games) for split_games in found.values())
        table.add_row(task_type, *map(str, counts))
    table.add_row("all", *(str(len(split_games)) for split_games in found.values()))
    Console().print(table)
    for split, source in zip(found, sources.values(), strict=True):
        typer.echo(f"{split}: {source.origin}, {source.folder}")


@games_app.command("verify", short_help="Check that games play compiled as they do on TextWorld itself.")
def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of games, or one game's game.tw-pddl.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps a game; a step takes TextWorld about 50 ms.")] = 200,
    seed: Annotated[int, typer.Option(help="The same seed gives the same commands.")] = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Play every game on both engines, and compare all that they say: text, commands, reward, won and done.

    The commands are those of a player at random, of an expert, and of one who looks again and again, fiddles with doors
    and says what is not admissible. Exits with 1 where the engines differ, after the shortest commands that show it.
    """
    from collect.difference import check_all
    from collect.games import find_sources, game_at, read_games
    from collect.policy import check_installed
    from collect.progress import counted

    check_installed("alfworld", "textworld")
    if path.is_file():
        games = [game_at(path)]
    else:
        sources = find_sources(path).items()
        games = [game for split, source in sources for game in read_games(source.folder, split or "given")]
    taken = differing = unplayed = 0
    with counted(f"playing {len(games)} games on both engines", "games", quiet=quiet) as update:
        for done, (game, result) in enumerate(check_all(games, steps, seed), start=1):
            taken += result.steps
            differing += result.difference is not None
            unplayed += result.fault is not None
            update(done, len(games))
            if result.difference is not None:
                typer.echo(f"{game.path}:\n{result.difference}")
            elif result.fault is not None:
                typer.echo(f"{game.path}: not compared: {result.fault}")
    typer.echo(
        f"{taken} steps in {len(games)} games: {differing} games differ, {unplayed} could not be compared; the others "
        "are the same in text, commands, reward, won and done"
    )
    if differing:
        raise typer.Exit(1)


def _share(text: str) -> tuple[str, float]:
    task_type, _, share = text.partition("=")
    try:
        return task_type, float(share)
    except ValueError:
        raise InputError(f"--share {text}: write TYPE=SHARE, such as pick_two_obj_and_place=0.5") from None


def _cap(text: str) -> int | None:
    if text.strip() == "all":
        return None
    if not text.strip().isdecimal():
        raise InputError(f"--receptacles: {text!r} is neither a number nor `all`; write such as 4,8,all")
    return int(text)


def collect(
    ctx: typer.Context,
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Folder of the run; by default a new one in runs/.")
    ] = None,
    games: Annotated[str, typer.Option(help="train, valid_seen, valid_unseen, or a folder of games.")] = "valid_seen",
    groups: Annotated[int, typer.Option(help="Groups to collect; fewer when the games do not suffice.")] = 100,
    visits: Annotated[int, typer.Option(help="How often to roll each game out; each visit is a group.")] = 1,
    group_size: Annotated[int, typer.Option(help="G, trajectories a group.")] = 8,
    max_steps: Annotated[int, typer.Option(help="The horizon: most steps of a trajectory.")] = 30,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name; by default a small one that needs no hub, on a GPU Qwen2.5-7B-Instruct."
        ),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="Folder of a LoRA adapter, or none; the default model brings its own.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="vllm or transformers; auto is vllm where it runs, but under --deterministic.")
    ] = "auto",
    environment: Annotated[
        str, typer.Option(help="compiled, or stock: TextWorld itself, byte for byte the same and slower.")
    ] = "compiled",
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; training uses 1, the paper's rollouts 0.95.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a reply; by default 24 for act, 96 for react.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="act (a reply is a command) or react (thought, then action); by default what suits the model."
        ),
    ] = None,
    show_commands: Annotated[
        bool | None,
        typer.Option("--show-commands/--no-show-commands", help="List the commands admitted; by default for react."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same games and the same random numbers.")] = 0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Same rollouts to the last bit whatever is in flight; slower.")
    ] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Groups in flight: this many times G trajectories.")] = 4,
    gate: Annotated[
        Path | None, typer.Option(help="A gate.json, to cut the groups that it flags; without one all run to the end.")
    ] = None,
    gate_mode: Annotated[
        str | None, typer.Option(help="on, or shadow: what the gate decides is logged, and nothing is cut.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Roll out groups of a language model on ALFWorld games and log everything to Parquet.

    Started again with the same OUT and settings, it completes what is missing.
    """
    from collect.collection import Collection, choose_games
    from collect.collection import collect as roll_out
    from collect.engine import Sampling, open_engine, resolve_engine
    from collect.environment import open_environments
    from collect.policy import find_policy, load_tokenizer
    from collect.progress import counted
    from collect.prompt import check_style
    from collect.store import check_run, committed_ids, new_run_folder

    environments = open_environments(environment, lambda notice: typer.echo(notice, err=True))
    policy = find_policy(model, adapter)
    style = check_style(prompt or ("act" if policy.small else "react"))
    collection = Collection(
        policy=policy,
        engine=resolve_engine(engine, deterministic),
        games=games,
        groups=groups,
        visits=visits,
        group_size=group_size,
        horizon=max_steps,
        sampling=Sampling(temperature, top_p, max_tokens if max_tokens is not None else 24 if style == "act" else 96),
        prompt=style,
        show_commands=style == "react" if show_commands is None else show_commands,
        seed=seed,
        deterministic=deterministic,
        gate=_gating(gate, gate_mode),
    )
    watcher = _watcher(ctx, gate, collection)
    out = out or new_run_folder(RUNS, "collect")
    check_run(out, collection.configuration())
    tokenizer = load_tokenizer(policy)
    found, where = choose_games(games)
    tasks = collection.tasks(found)
    if not quiet:
        typer.echo(f"policy: {policy.name}, {f'adapter {policy.adapter}' if policy.adapter else 'no adapter'}")
        typer.echo(f"games: {where}")
        if len(tasks) < groups:
            typer.echo(f"groups: {len(tasks)}, not {groups}: every game is visited --visits {visits} times")
        typer.echo(f"run: {out}")
    if committed_ids(out).issuperset(task.group_id for task in tasks):
        if not quiet:
            typer.echo(f"all {len(tasks)} groups are there already; more: --groups, --visits or another OUT")
            _print_summary(out)
        return
    loaded = open_engine(collection.engine, policy, deterministic)
    try:
        with counted(f"collecting with the {collection.engine} engine", "groups", quiet=quiet) as update:
            tally = roll_out(
                collection,
                tasks,
                loaded,
                environments,
                tokenizer,
                out,
                concurrency,
                lambda t: _show(t, update),
                watcher,
            )
    except KeyboardInterrupt:
        typer.echo(f"interrupted: finished groups are kept; give OUT {out} and the same options to go on", err=True)
        raise typer.Exit(130) from None
    finally:
        loaded.close()
    if not quiet:
        _print_summary(out)
    if tally.failures:
        raise SelectiveRolloutError(
            f'{tally.failures} groups failed and are owed: see sr query {out} "FROM errors", then run the same again'
        )


def _gating(gate: Path | None, mode: str | None) -> "Gating | None":
    from collect.collection import Gating

    if gate is None:
        if mode is not None:
            raise InputError(f"--gate-mode {mode}: there is no gate; name one with --gate FILE")
        return None
    mode = mode or "on"
    if mode not in ("on", "shadow"):
        raise InputError(f"--gate-mode {mode}: unknown; on or shadow")
    try:
        return Gating(hashlib.sha256(gate.read_bytes()).hexdigest(), "on" if mode == "on" else "shadow")
    except OSError as error:
        raise InputError(f"--gate {gate}: cannot be read ({error.strerror}); sr calibrate writes one") from error


def _watcher(ctx: typer.Context, gate: Path | None, collection: "Collection") -> "Watcher | None":
    """The gate as the rollout loop takes it, with a line for each thing that speaks against it here."""
    from collect.watch import LoadWatcher, Shadow

    if gate is None or collection.gate is None:
        return None
    load: LoadWatcher = ctx.obj
    watcher, doubts = load(gate, collection.configuration())
    for doubt in doubts:
        typer.echo(doubt, err=True)
    return Shadow(watcher) if collection.gate.mode == "shadow" else watcher


def _show(tally: "Tally", update: "Update") -> None:
    success = f", success {tally.won / tally.trajectories:.0%}" if tally.trajectories else ""
    success += f", {tally.cut} cut" if tally.cut else ""
    seconds = max(tally.seconds, 1e-9)
    note = f"{tally.tokens / seconds:.0f} tokens/s, {tally.steps / seconds:.1f} steps/s{success}"
    update(tally.groups + tally.failures, tally.owed, note)


def _print_summary(run: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from collect.summary import count_cut, summarise

    table = Table(title="success and outcomes of groups, with 95 % intervals", title_justify="left")
    table.add_column("task type", no_wrap=True)
    for name in ("groups", "success", "all-fail", "mixed", "all-succeed", "zero-variance"):
        table.add_column(name, justify="right", overflow="fold")
    for row in summarise(run):
        counts = map(str, (row.all_fail, row.mixed, row.all_succeed))
        table.add_row(row.task_type, str(row.groups), _percent(row.success()), *counts, _percent(row.zero_variance()))
    # Where there is no terminal nothing must be cut to a guessed width.
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if cut := count_cut(run):
        typer.echo(f"not counted: {cut} groups that the gate cut; their rewards are truncated")


def _percent(rate: tuple[float, float, float]) -> str:
    value, low, high = (100 * part for part in rate)
    return f"{value:.0f} % [{low:.0f}, {high:.0f}]"
