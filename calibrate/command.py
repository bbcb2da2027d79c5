"""Command: sr calibrate. The others of this package are in `calibrate.command_replay`."""

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate.checks import (
    AUTO,
    DEFAULT_SIGNAL,
    check_confidence,
    check_fits_nothing,
    check_folder_of_curves,
    check_options,
    check_policy,
    check_signal,
    check_writable,
    levels_of,
)
from calibrate.convention import Convention
from calibrate.kinds import GateKind
from collect.errors import InputError
from collect.options import RUNS, Debug, Quiet
from collect.progress import counted

if TYPE_CHECKING:
    from calibrate.console import Console
    from calibrate.fit import Search
    from calibrate.folds import OutOfSample
    from calibrate.gate import Certificate
    from calibrate.rules import Rule
    from calibrate.sample import Sample

NO_GATE = 3  # exit code
_TARGET_PRECISION = 0.9
_CURVES = "calibration"  # the folder of the tables of curves, in the run or beside the gate
_TERMINATIONS = "termination_fraction"
_PATIENCE = 5.0  # seconds of work before there is a bar for it


def calibrate(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of a run; by default the latest in runs/.")
    ] = None,
    target_precision: Annotated[
        float | None, typer.Option(help="Smallest precision the gate may have, over 0 and up to 1; 0.9 by default.")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="Write a gate only if it is certified: with this confidence, such as 0.95, its precision on new "
            "groups is the target or more. Takes many groups, and says how many."
        ),
    ] = None,
    gate: Annotated[
        GateKind,
        typer.Option(
            help="threshold: one threshold at one step. either: or when enough trajectories have ended. sequential: "
            "thresholds at up to three steps. learned: logistic on all signals. auto: the simplest of these within one "
            "standard error of the best net saving out of sample."
        ),
    ] = GateKind.THRESHOLD,
    signal: Annotated[
        str,
        typer.Option(
            help="The signal that the gate reads (docs/data.md lists them, under signals), or auto for the best of all."
        ),
    ] = DEFAULT_SIGNAL,
    at_step: Annotated[int | None, typer.Option(help="Only consider cutting at this step K.")] = None,
    convention: Annotated[
        Convention,
        typer.Option(help="Count the groups that can really be cut, or, as the paper's tables do, all flagged ones."),
    ] = Convention.ELIGIBLE,
    signals: Annotated[
        Path | None,
        typer.Option(help="Take signals from this CSV or Parquet table, one row a group and step, instead of a run."),
    ] = None,
    thresholds: Annotated[
        str | None,
        typer.Option(
            help="Show what gates at these thresholds do, such as 0.05,0.08. No gate is fitted then, "
            "unless --target-precision is given too."
        ),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(help="With --signals: the horizon that the budget form of savings counts; 30 by default."),
    ] = None,
    reward_tolerance: Annotated[
        float | None,
        typer.Option(help="Rewards of a group that differ by no more than this count as equal; 1e-8 by default."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the gate goes; by default gate.json in the run, or here with --signals."),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a gate on ungated rollouts: when does a group's disagreement tell that it will teach nothing?

    Computes the signals of every group at every step K, shows how well each ranks groups and what the best threshold
    at each K would cut, and writes the gate with the best net saving whose precision on these groups reaches the
    target, after at least 10 cuts. The whole choice is made again in folds by task and judged on the groups left out:
    that row, not the one in sample, says what to expect of other groups. Writes signals.parquet, calibration/ and
    gate.json into the run. Exits with 3, and leaves an earlier gate.json alone, when no gate will do.
    """
    check_options(run, signals, target_precision, max_steps, reward_tolerance)
    check_signal(signal, gate)
    check_confidence(confidence, target_precision, convention)
    levels = levels_of(thresholds, signal)
    fitting = target_precision is not None or not levels
    if not fitting:
        check_fits_nothing(confidence, gate, out)
    title, run = source(run, signals)
    destination = out or (run / "gate.json" if run else Path("gate.json"))
    if run is not None and not os.access(run, os.W_OK | os.X_OK):
        raise InputError(f"{run}: signals.parquet cannot be written there; make it writable, or calibrate a copy of it")
    if fitting:
        check_writable(destination)
        curves = (run or destination.parent) / _CURVES
        check_folder_of_curves(curves)
        if run is not None:
            check_policy(run)
    sample = read_sample(
        run, signals, at_step, max_steps, reward_tolerance, () if signal == AUTO else (signal,), quiet=quiet
    )
    if confidence is not None and sample.no_draw:
        raise InputError(
            f"--confidence: {run or signals} guarantees nothing, as {sample.no_draw}; give an ungated sr collect run"
        )
    shown = next(iter(sample.signals)) if signal == AUTO else signal
    if gate is GateKind.EITHER and _TERMINATIONS not in sample.signals:
        raise InputError(f"--gate either: reads {_TERMINATIONS}, which {run or signals} lacks; give another --gate")
    columns = tuple(range(len(sample.steps))) if at_step is None else (sample.column(at_step),)

    from calibrate import printing
    from calibrate.certificate import certify
    from calibrate.fit import Search
    from calibrate.rollouts import write_signals

    if run is not None:
        write_signals(run / "signals.parquet", sample)
    console = printing.console()
    for line in [title, *printing.head(sample, convention)]:
        console.print(line)
    if levels:
        _show_thresholds(sample, shown, columns, levels, convention, console)
    if not fitting:
        return
    target = _TARGET_PRECISION if target_precision is None else target_precision
    search = Search(target, convention, columns, tuple(sample.signals) if signal == AUTO else (signal,))
    _show_curves(sample, search, shown, curves, console, quiet=quiet)
    # With --confidence another rule is written than the one found here, or none.
    rule, outside = _fit(sample, search, gate, shown, console, written=confidence is None, quiet=quiet)
    certificate = None
    if confidence is not None:
        attempt = certify(sample, search, gate, confidence)
        for line in printing.certificate(attempt, search, confidence, sample):
            console.print(line)
        # The folds judged another procedure than the one that certified.
        rule, certificate, outside = attempt.rule, attempt.certificate, None
    if rule is None:
        raise typer.Exit(NO_GATE)
    _write(destination, rule, sample, search, outside, certificate, run)
    console.print(f"wrote {destination}")


def _show_thresholds(
    sample: "Sample",
    signal: str,
    columns: Sequence[int],
    levels: Sequence[float],
    convention: Convention,
    console: "Console",
) -> None:
    from calibrate import printing
    from calibrate.fit import apply
    from calibrate.rules import Threshold

    rules = [
        Threshold(signal=signal, step=int(sample.steps[column]), threshold=level)
        for column in columns
        for level in levels
    ]
    tallies = [(rule, apply(sample, rule, convention)) for rule in rules]
    console.print(printing.per_threshold(tallies, convention, sample))


def _show_curves(
    sample: "Sample", search: "Search", shown: str, folder: Path, console: "Console", *, quiet: bool
) -> None:
    """Rank the groups by every signal at every step, write the curves, and print how well each ranks."""
    from calibrate import printing
    from calibrate.curve_table import cells, write_curves

    with counted("ranking the groups by every signal", "steps K", quiet=quiet, patience=_PATIENCE) as progress:
        known = cells(sample, search.convention, search.columns, progress)
    write_curves(folder, sample, search.convention, known)
    console.print(printing.heat_map(known, shown))


def _fit(
    sample: "Sample", search: "Search", kind: GateKind, shown: str, console: "Console", *, written: bool, quiet: bool
) -> tuple["Rule | None", "OutOfSample | None"]:
    """Fit gates and print them; the one chosen, if any, and what its choice is worth out of sample."""
    from calibrate import printing
    from calibrate.calibration import choice_out_of_sample, choose, fits, judge
    from calibrate.fit import fit

    with counted("fitting gates, on all groups and in folds", "fits", quiet=quiet, patience=_PATIENCE) as progress:
        ticks = count()

        def tick() -> None:
            progress(next(ticks), fits(kind))

        judged = judge(sample, search, kind, tick=tick)
        choice = choice_out_of_sample(sample, search, tick) if kind is GateKind.AUTO else None
    chosen = choose(judged)
    outside = choice or (chosen.out_of_sample if chosen else None)
    rule = None if chosen is None else chosen.rule
    several = len(search.signals) > 1
    table = fit(sample, search, rule.signals[0] if rule is not None and several else shown)
    console.print(printing.per_step(table, rule if written else None, sample))
    for line in printing.legend(table):
        console.print(line)
    console.print(printing.gates(judged, chosen if written else None, choice, sample))
    for line in [*printing.legend_of_gates(judged), ""]:
        console.print(line)
    if chosen is None or rule is None or chosen.in_sample is None:
        for line in printing.no_gate(table, kind, several=several):
            console.print(line)
        return None, None
    for line in printing.verdict(chosen, outside, sample, written=written):
        console.print(line)
    return rule, outside


def _write(
    path: Path,
    rule: "Rule",
    sample: "Sample",
    search: "Search",
    outside: "OutOfSample | None",
    certificate: "Certificate | None",
    run: Path | None,
) -> None:
    """Write the gate with what was measured of it."""
    from calibrate.fit import apply
    from calibrate.gate import make_gate, save
    from collect.store import read_run

    made = make_gate(
        rule,
        sample,
        read_run(run) if run else None,
        convention=search.convention,
        target_precision=search.target_precision,
        evidence=apply(sample, rule, search.convention),
        out_of_sample=outside.tally if outside else None,
        certificate=certificate,
        reward_tolerance=sample.reward_tolerance,
    )
    save(made, path)


def source(run: Path | None, signals: Path | None) -> tuple[str, Path | None]:
    """What is calibrated on, in words, and the run if it is one."""
    if signals is not None:
        return f"signals: {signals}", None
    from collect.store import latest_run, read_run

    title = f"run: {run}"
    if run is None:
        run = latest_run(RUNS)
        title = f"run: {run} (the latest in {RUNS}/)"
    made = read_run(run).configuration
    told = ", ".join(f"{name} {made[name]}" for name in ("model", "adapter", "prompt") if made.get(name) is not None)
    return title + (f"; {told}" if told else ""), run


def read_sample(
    run: Path | None,
    signals: Path | None,
    at_step: int | None,
    max_steps: int | None,
    reward_tolerance: float | None,
    needed: tuple[str, ...],
    *,
    otherwise: float | None = None,
    quiet: bool,
) -> "Sample":
    """The groups of the run, or of the table, which must hold the signals that are `needed`. The reward tolerance is
    `otherwise`, or by default 1e-8, where neither is given nor the table says it.
    """
    from calibrate.outcomes import REWARD_TOLERANCE

    otherwise = REWARD_TOLERANCE if otherwise is None else otherwise
    if signals is not None:
        from calibrate.signal_table import read_table

        return read_table(
            signals,
            max_steps=max_steps,
            at_step=at_step,
            reward_tolerance=reward_tolerance,
            signals=needed,
            otherwise=otherwise,
        )
    from calibrate.rollouts import read_rollouts

    assert run is not None
    tolerance = otherwise if reward_tolerance is None else reward_tolerance
    with counted(f"reading {run}", "groups", quiet=quiet, patience=_PATIENCE) as progress:
        sample = read_rollouts(run, tolerance, progress=progress)
    for name in needed:
        if name not in sample.signals:
            raise InputError(f"{run}: was imported without what {name} reads; give another signal")
    return sample
