"""Commands: sr replay, sr gate show."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate.command import check_options, read_sample, source
from calibrate.convention import Convention
from collect.errors import InputError
from collect.options import Commands, Debug

if TYPE_CHECKING:
    from calibrate.gate import Gate
    from calibrate.sample import Sample


def replay(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of an ungated run; by default the latest in runs/.")
    ] = None,
    gate: Annotated[
        list[Path] | None, typer.Option(help="A gate.json (repeatable); by default the one in the run.")
    ] = None,
    signals: Annotated[
        Path | None,
        typer.Option(help="Take signals from this CSV or Parquet table, one row a group and step, instead of a run."),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(help="With --signals: the horizon that the budget form of savings counts; 30 by default."),
    ] = None,
    other_group_size: Annotated[
        bool, typer.Option("--other-group-size", help="Replay a gate that was fitted on groups of another size.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show what each policy of cutting would have done on the groups of an ungated run.

    No cuts, random ones, an oracle, a filter after the rollout, a skip by a game's history, and each gate, with what
    they would have saved and lost. Then the same gate on smaller groups, made of some of each group's trajectories. A
    gate replayed on the groups that it was fitted on is flattered. Writes nothing.
    """
    check_options(run, signals, None, max_steps, None)
    title, run = source(run, signals)
    paths = gate or ([run / "gate.json"] if run is not None else [])
    if not paths:
        raise InputError("--gate: give the gate.json to replay on the table")
    from calibrate.gate import load

    gates = {_gate_name(path, paths): load(path) for path in paths}
    needed = tuple(sorted({name for one in gates.values() for name in one.rule.signals}))
    sample = read_sample(run, signals, None, max_steps, None, needed)
    for path, one in zip(paths, gates.values(), strict=True):
        _check_fits(path, one, sample, other_group_size)

    from calibrate import printing, printing_replay
    from calibrate.outcomes import REWARD_TOLERANCE
    from calibrate.replay import replay as replayed
    from calibrate.transfer import transfer

    console = printing.console()
    for line in [title, *printing.head(sample, Convention.ELIGIBLE)]:
        console.print(line)
    data = sample.fingerprint()
    for name, one in gates.items():
        own = "; fitted on these very groups, which flatters it" if one.data == data else ""
        console.print(f"{name}: {one.rule}{own}")
        for warning in _mismatches(one, sample, run):
            console.print(f"  warning: {warning}")
    rows = replayed(sample, {name: one.rule for name, one in gates.items()})
    console.print(printing_replay.policies(rows, sample))
    for line in printing_replay.notes(rows, sample):
        console.print(line)
    if run is None or sample.group_size is None or sample.group_size < 4:
        return
    for name, one in gates.items():
        console.print(f"{name} at smaller groups (some trajectories of each, outcomes recomputed):")
        console.print(printing_replay.sizes(transfer(run, one.rule, sample.group_size, REWARD_TOLERANCE)))


gate_app = typer.Typer(cls=Commands, help="Look at a gate.", rich_markup_mode=None)


@gate_app.callback()
def _gate() -> None:
    """Look at a gate."""


@gate_app.command("show", short_help="Say in words what a gate does and what stands behind it.")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A gate.json.")],
    debug: Debug = False,
) -> None:
    """Say in words what a gate does, what it was fitted on, and what stands behind it."""
    from calibrate import printing, printing_replay
    from calibrate.gate import load

    console = printing.console()
    for line in printing_replay.describe(load(file)):
        console.print(line)


def _gate_name(path: Path, paths: list[Path]) -> str:
    if len(paths) == 1:
        return "gate"
    if len(set(paths)) < len(paths):
        raise InputError("--gate: given twice; give each gate once")
    return f"gate {path}"


def _check_fits(path: Path, gate: "Gate", sample: "Sample", other_group_size: bool) -> None:
    """Refuse a gate that cannot be asked about these groups."""
    lacking = [step for step in gate.steps if step not in sample.steps]
    if lacking:
        raise InputError(f"{path}: decides at K = {lacking[0]}, which these groups do not have; give another gate")
    sizes = gate.group_size, sample.group_size
    if None not in sizes and sizes[0] != sizes[1] and not other_group_size:
        raise InputError(
            f"{path}: was fitted on groups of {sizes[0]}, these are of {sizes[1]}; fit one for them, or say "
            "--other-group-size"
        )


def _mismatches(gate: "Gate", sample: "Sample", run: Path | None) -> list[str]:
    """In what these rollouts are of another kind than those that the gate was fitted on."""
    from collect.store import read_run

    found = [f"fitted at a horizon of {gate.horizon}, not {sample.horizon}"] if gate.horizon != sample.horizon else []
    made = read_run(run).configuration if run is not None else {}
    for name, fitted in (("model", gate.model), ("adapter", gate.adapter), ("prompt", gate.prompt)):
        if run is not None and fitted is not None and str(made.get(name)) != fitted:
            found.append(f"fitted on rollouts of {name} {fitted}, not {made.get(name)}")
    return found
