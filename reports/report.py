"""A report: what was given (runs, tables), the figures and tables that come of it, and the page, in a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from calibrate.gate import Gate
from calibrate.outcomes import REWARD_TOLERANCE
from calibrate.signals import PREFIX_EDIT_DISTANCE
from collect.errors import InputError
from collect.files import replacing
from collect.progress import Update
from collect.store import RunInfo, is_run, read_run, run_names
from reports import rollouts_section, training_section
from reports.browser import Replayed, Shelf, shelve
from reports.drawing import Figure, check_installed, draw, write
from reports.focus import Focus, find_gate, focus, thresholds
from reports.page import Section, build, slug
from reports.tables import Sheet, write_csv
from reports.training_log import in_order, is_released, is_training, read_released, read_training
from reports.visible import visible

PAGE = "report.html"


@dataclass(frozen=True, eq=False)
class Part:
    """A section before it is drawn: its figures, and its tables that no figure shows."""

    section: Section
    figures: Sequence[Figure]
    sheets: Sequence[Sheet]


@dataclass(frozen=True)
class Written:
    """What was written: the page and its size, how many figures and tables, and how many groups of how many."""

    page: Path
    bytes: int
    figures: int
    tables: int
    groups_shown: int
    groups: int


def write_report(given: Sequence[Path], out: Path, update: Update) -> Written:
    """Report on runs and tables together, into the folder `out`, which is made if need be.

    Writes report.html, figures/*.svg and *.pdf, tables/*.csv; what stands there of the same name is replaced, and
    nothing else is touched.

    Raises:
        InputError: what is given is no run and no table that is known, a run is damaged, or `out` cannot be written.
        MissingDependency: the packages that draw are not installed.
    """
    check_installed()
    _check_out(out)
    parts, shelves = _parts(given)
    total = sum(len(part.figures) for part in parts)
    try:
        for folder in (out, out / "figures", out / "tables"):
            folder.mkdir(parents=True, exist_ok=True)
        sections, done = [], 0
        for part in parts:
            drawn = []
            for figure in part.figures:
                drawn.append((figure, draw(figure)))
                write(drawn[-1][1], out / "figures", figure.name)
                done += 1
                update(done, total)
            sections.append(replace(part.section, figures=drawn, sheets=part.sheets))
        tables = {table.name: table for part in parts for table in _tables(part)}
        for name, table in tables.items():
            write_csv(table, out / "tables" / f"{name}.csv")
        page = _page(given, sections, shelves)
        with replacing(out / PAGE) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written to ({error.strerror}); give another folder") from error
    return Written(
        page=out / PAGE,
        bytes=len(page.encode()),
        figures=total,
        tables=len(tables),
        groups_shown=sum(len(shelf["groups"]) for shelf in shelves),
        groups=sum(shelf["of"] for shelf in shelves),
    )


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file; give a folder for the report")
    if is_run(out):
        raise InputError(f"--out {out}: is a run; give a folder of its own for the report")


def _parts(given: Sequence[Path]) -> tuple[list[Part], list[Mapping[str, Any]]]:
    runs = [run for path in given if path.is_dir() for run in _runs_in(path)]
    files = [path for path in given if not path.is_dir()]
    for path in files:
        if files.count(path) > 1:
            raise InputError(f"{path}: given twice; give each table once")
    released = [path for path in files if path.is_file() and is_released(path)]
    signals = [path for path in files if path not in released]
    names = dict(zip(runs, run_names(runs), strict=True)) if runs else {}
    trained = [run for run in runs if is_training(run)]
    logs = in_order(
        [*(read_training(run) for run in trained), *(log for path in released for log in read_released(path))]
    )
    parts, shelves = [], []
    if logs:
        section, made, alone = training_section.drawn_from(logs)
        parts.append(Part(section, made, alone))
    rolled_out = [run for run in runs if run not in trained]
    prefixes = _prefixes({path: names.get(path, path.stem) for path in [*rolled_out, *signals]})
    for run in runs:
        if run in trained:
            shelves.append(_of_training(run, names[run], 1 / len(runs)))
        else:
            part, shelf = _rollouts(run, names[run], 1 / len(runs), prefixes[run])
            parts.append(part)
            shelves.append(shelf)
    parts += [_table_of_signals(path, prefixes[path]) for path in signals]
    return parts, [shelf for shelf in shelves if shelf["groups"]]


def _prefixes(names: Mapping[Path, str]) -> dict[Path, str]:
    """What the figures and tables of each are named with: nothing where it is alone, else something of its own."""
    if len(names) == 1:
        return dict.fromkeys(names, "")
    found: dict[Path, str] = {}
    for path, name in names.items():
        prefix, number = f"{slug(name)}-", 1
        while prefix in found.values():
            number += 1
            prefix = f"{slug(name)}-{number}-"
        found[path] = prefix
    return found


def _runs_in(folder: Path) -> list[Path]:
    """The folder, or, where it is no run but holds some (the arms of a training run), those."""
    if is_run(folder):
        return [folder]
    found = sorted(below for below in folder.iterdir() if below.is_dir() and is_run(below))
    if not found:
        read_run(folder)  # says what is wrong with it
    return found


def _rollouts(run: Path, name: str, share: float, prefix: str) -> tuple[Part, Mapping[str, Any]]:
    from calibrate.rollouts import read_rollouts

    info = read_run(run)
    sample = read_rollouts(run, REWARD_TOLERANCE)
    at = focus(sample, find_gate(run))
    part = _part(sample, at, name, [_made(info)], prefix)
    replayed = None if at.rule is None else Replayed(at.rule, sample)
    shelf = shelve(run, name, at.signal, replayed, share)
    return part, _shelf(shelf, at.gate, thresholds(at.rule))


def _of_training(run: Path, name: str, share: float) -> Mapping[str, Any]:
    gate = find_gate(run)
    one_signal = gate is not None and gate.rule.kind != "learned"
    signal = gate.rule.signals[0] if gate is not None and one_signal else PREFIX_EDIT_DISTANCE.name
    return _shelf(shelve(run, name, signal, None, share), gate, {})


def _table_of_signals(path: Path, prefix: str) -> Part:
    from calibrate.signal_table import read_table

    sample = read_table(path, max_steps=None, at_step=None, reward_tolerance=None)
    return _part(sample, focus(sample, None), path.stem, [], prefix)


def _part(sample: Any, at: Focus, name: str, lead: list[str], prefix: str) -> Part:
    made, alone = rollouts_section.drawn_from(sample, at)
    made = [
        replace(figure, name=prefix + figure.name, data=replace(figure.data, name=prefix + figure.data.name))
        for figure in made
    ]
    section = Section(
        name=f"{prefix}rollouts",
        title=f"Rollouts: {name}" if prefix else "Rollouts",
        lead=[*lead, *rollouts_section.lead(at)],
        warnings=rollouts_section.warnings(sample, at),
        tiles=rollouts_section.tiles(sample, at),
    )
    return Part(section, made, [replace(table, name=prefix + table.name) for table in alone])


def _made(info: RunInfo) -> str:
    """How a run was made, in a line."""
    told = ("format", "model", "adapter", "games", "prompt", "temperature", "top_p", "seed")
    known = [f"{name} {info.configuration[name]}" for name in told if info.configuration.get(name) is not None]
    return f"Made by sr {info.command}, {info.created:%Y-%m-%d %H:%M} UTC{': ' * bool(known)}{', '.join(known)}."


def _shelf(shelf: Shelf, gate: Gate | None, replayed: Mapping[int, float]) -> Mapping[str, Any]:
    """What the page's script reads: `thresholds` of the rule that is replayed, and whether those that were `recorded`
    are thresholds on the signal that is drawn.
    """
    return {
        "run": visible(shelf.run, 200),
        "signal": shelf.signal,
        "thresholds": replayed,
        "recorded": gate is not None and bool(thresholds(gate.rule)),
        "rule": "rule" if gate is None else "gate",
        "of": shelf.of,
        "groups": shelf.groups,
    }


def _tables(part: Part) -> list[Sheet]:
    return [*(figure.data for figure in part.figures), *part.sheets]


def _page(given: Sequence[Path], sections: Sequence[Section], shelves: Sequence[Mapping[str, Any]]) -> str:
    names = ", ".join(path.resolve().name for path in given)
    told = []
    for shelf in shelves:
        shown, whose = len(shelf["groups"]), f"{shelf['run']}: " if len(shelves) > 1 else ""
        told.append(
            f"{whose}all {shown:,} groups"
            if shown == shelf["of"]
            else f"{whose}{shown:,} of {shelf['of']:,} groups, drawn by a hash of their ids to keep the page small"
        )
    return build(
        title=f"Report: {names}" if len(names) < 80 else f"Report on {len(given)} runs and tables",
        subtitle="Intervals are 95 %; their unit is the task, unless a caption says otherwise.",
        sections=sections,
        shelves=shelves,
        note="In this page: " + "; ".join(told) + ".",
        footer=f"Written by sr report, selective-rollout {version('selective-rollout')}. Works offline.",
    )
