"""Commands: sr replay, sr gate show."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate.checks import check_options
from calibrate.command import read_sample, source
from calibrate.convention import Convention
from collect.errors import InputError
from collect.options import Commands, Debug, Quiet

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
    gated: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="A run of the same games and seed by sr collect --gate: say which of its cuts were right, and what "
            "they saved, instead of replaying a gate.",
        ),
    ] = None,
    reward_tolerance: Annotated[
        float | None,
        typer.Option(
            help="Rewards of a group that differ by no more than this count as equal; by default the gate's, or 1e-8."
        ),
    ] = None,
    other_group_size: Annotated[
        bool, typer.Option("--other-group-size", help="Replay a gate that was fitted on groups of another size.")
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show what each policy of cutting would have done on the groups of an ungated run.

    No cuts, random ones, an oracle, a filter after the rollout, a skip by a game's history, and each gate, with what
    they would have saved and lost. Then the same gate on smaller groups, which each group is dealt into. A
    gate replayed on the groups that it was fitted on is flattered. With --gated: what a gate really did. It writes
    nothing.
    """
    check_options(run, signals, None, max_steps, reward_tolerance)
    title, run = source(run, signals)
    if gated is not None:
        if run is None or gate:
            raise InputError("--gated: compares two runs as they were rolled out; drop --signals and --gate")
        _compare(title, run, gated, reward_tolerance)
        return
    paths = gate or ([run / "gate.json"] if run is not None else [])
    if not paths:
        raise InputError("--gate: give the gate.json to replay on the table")
    from calibrate.gate import load

    gates = {_gate_name(path, paths): load(path) for path in paths}
    needed = tuple(sorted({name for one in gates.values() for name in one.rule.signals}))
    theirs = None if reward_tolerance is not None else _tolerance(gates)
    sample = read_sample(run, signals, None, max_steps, reward_tolerance, needed, otherwise=theirs, quiet=quiet)
    for path, one in zip(paths, gates.values(), strict=True):
        _check_fits(path, one, sample, other_group_size)

    from calibrate import printing, printing_replay
    from calibrate.replay import replay as replayed
    from calibrate.transfer import transfer

    console = printing.console()
    for line in [title, *printing.head(sample, Convention.ELIGIBLE)]:
        console.print(line)
    if len(gates) > 1:
        console.print(f"random cuts and the oracle are at the steps of {next(iter(gates))}")
    for name, one in gates.items():
        own = "; fitted on these very groups, which flatters it" if one.fitted_on(sample) else ""
        console.print(f"{name}: {one.rule}{own}")
        for warning in _mismatches(one, sample, run):
            console.print(f"  warning: {warning}")
    rows = replayed(sample, {name: one.rule for name, one in gates.items()})
    console.print(printing_replay.policies(rows, sample))
    for line in printing_replay.notes(rows, sample):
        console.print(line)
    if run is None or sample.group_size is None:
        console.print("smaller groups: n/a, a table of signals does not hold the trajectories to make them of")
        return
    if sample.group_size < 4:
        console.print(f"smaller groups: n/a, these are of {sample.group_size}")
        return
    assert sample.reward_tolerance is not None
    for name, one in gates.items():
        console.print(f"{name} at smaller groups, which each group is dealt into (outcomes recomputed):")
        console.print(printing_replay.sizes(transfer(run, one.rule, sample.group_size, sample.reward_tolerance)))


def _compare(title: str, run: Path, gated: Path, reward_tolerance: float | None) -> None:
    from calibrate import printing, printing_matched
    from calibrate.matched import compare
    from calibrate.outcomes import REWARD_TOLERANCE

    found = compare(run, gated, REWARD_TOLERANCE if reward_tolerance is None else reward_tolerance)
    console = printing.console()
    console.print(title)
    console.print(f"gated: {gated}")
    for line in printing_matched.head(found):
        console.print(line)
    console.print(printing_matched.cuts(found))
    console.print(printing_matched.totals(found))
    for line in printing_matched.notes(found):
        console.print(line)


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
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("--gate: given twice; give each gate once")
    return f"gate {path}"


def _tolerance(gates: "Mapping[str, Gate]") -> float | None:
    """The reward tolerance that all gates were fitted with; None where they do not say."""
    known = sorted({one.reward_tolerance for one in gates.values() if one.reward_tolerance is not None})
    if len(known) > 1:
        told = ", ".join(f"{value:g}" for value in known)
        raise InputError(
            f"--gate: the gates were fitted with different reward tolerances ({told}); give one with --reward-tolerance"
        )
    return known[0] if known else None


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

    made = read_run(run).configuration if run is not None else {}
    return gate.differences({**made, "horizon": sample.horizon, "group_size": sample.group_size})
