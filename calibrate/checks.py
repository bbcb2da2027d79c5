"""What `sr calibrate` and `sr replay` refuse before any work is done and anything is written."""

import math
import os
import sys
from contextlib import suppress
from pathlib import Path

from calibrate.convention import Convention
from calibrate.kinds import GateKind
from collect.errors import InputError
from collect.files import end_of_link

AUTO = "auto"  # as a signal: the best of all
DEFAULT_SIGNAL = "prefix_edit_distance_mean"
_CONFIDENCES = 0.5, 0.999999  # under the least a guarantee says nothing; over the most no number of groups gives it


def check_options(
    run: Path | None,
    signals: Path | None,
    target_precision: float | None,
    max_steps: int | None,
    reward_tolerance: float | None,
) -> None:
    """Refuse options that contradict each other or are out of range."""
    if run is not None and signals is not None:
        raise InputError(f"{run} and --signals {signals}: give a run or a table of signals, not both")
    if target_precision is not None and not 0 < target_precision <= 1:
        raise InputError(f"--target-precision {target_precision}: must be over 0 and at most 1")
    if max_steps is not None and signals is None:
        raise InputError("--max-steps: a run knows its horizon; give this only with --signals")
    if max_steps is not None and max_steps < 2:
        raise InputError(f"--max-steps {max_steps}: must be at least 2")
    if reward_tolerance is not None and not 0 <= reward_tolerance < math.inf:
        raise InputError(f"--reward-tolerance {reward_tolerance}: must be a number of at least 0")


def check_confidence(confidence: float | None, target_precision: float | None, convention: Convention) -> None:
    """Refuse a confidence that is none, or of which nothing can be certified."""
    if confidence is None:
        return
    least, most = _CONFIDENCES
    if not least <= confidence <= most:
        raise InputError(
            f"--confidence {confidence}: must be {least} to {most}, such as 0.95; less guarantees nothing, and more no "
            "number of groups does"
        )
    if target_precision == 1:
        raise InputError("--confidence: no number of groups certifies a precision of 1; lower --target-precision")
    if convention is not Convention.ELIGIBLE:
        raise InputError("--confidence: only real cuts can be certified; drop --convention")


def check_signal(signal: str, gate: GateKind) -> None:
    """Refuse a signal that is unknown, or that the kind of gate does not choose."""
    from calibrate.signals import BY_NAME

    if signal != AUTO and signal not in BY_NAME:
        raise InputError(f"--signal {signal}: unknown; give auto or one of {', '.join(BY_NAME)}")
    if gate is GateKind.LEARNED and signal != DEFAULT_SIGNAL:
        raise InputError("--signal: a learned gate reads all signals; give this with another --gate")
    if gate is GateKind.EITHER and signal == "termination_fraction":
        raise InputError("--signal termination_fraction: --gate either reads it beside another signal; name that one")


def check_fits_nothing(confidence: float | None, gate: GateKind, out: Path | None) -> None:
    """Refuse what belongs to a gate where --thresholds is only to show what given ones do."""
    given = {"--confidence": confidence is not None, "--gate": gate is not GateKind.THRESHOLD, "--out": out is not None}
    for option, there in given.items():
        if there:
            raise InputError(
                f"{option}: --thresholds alone fits no gate; give --target-precision too, or drop {option}"
            )


def levels_of(text: str | None, signal: str) -> list[float]:
    """The thresholds of --thresholds, on a signal; InputError where one is no number in its range."""
    if text is None:
        return []
    if signal == AUTO:
        raise InputError("--thresholds: are on one signal; name it with --signal")
    from calibrate.signals import BY_NAME

    known, levels = BY_NAME[signal], []
    for word in text.split(","):
        try:
            level = float(word)
        except ValueError:
            raise InputError(f"--thresholds {text!r}: {word!r} is not a number; write 0.05,0.08") from None
        if not (math.isfinite(level) and known.lowest <= level <= known.highest):
            raise InputError(f"--thresholds {text!r}: {word.strip()} is outside {known.range}")
        levels.append(level)
    return levels


def check_writable(path: Path) -> None:
    """Refuse, before anything is written, a place for the gate that cannot be written to."""
    folder = end_of_link(path).parent
    if not folder.is_dir():
        raise InputError(f"--out {path}: no such folder as {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be written there; give another place with --out")
    with suppress(FileNotFoundError):
        path.stat()  # what cannot be looked at is not there, says exists() of newer Pythons
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file with --out")
    if path.exists() and not path.is_file():  # a device may have no end to be read to
        raise InputError(f"{path}: exists and is not a gate; give another place with --out")
    if path.exists() and not os.access(path, os.R_OK):
        raise InputError(f"{path}: exists and cannot be read; make it readable, or give another place with --out")
    if path.exists() and not _is_gate(path):
        raise InputError(f"{path}: exists and cannot be read as a gate; give another place with --out")


def check_folder_of_curves(folder: Path) -> None:
    """Refuse, before anything is written, a folder for the tables of curves that cannot be written to."""
    if folder.is_file():
        raise InputError(f"{folder}: is a file, where a folder for the tables of curves goes; move it away")
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: the tables of curves cannot be written there; make it writable, or move it away")


def check_policy(run: Path) -> None:
    """Refuse, before anything is fitted, a run that says of its policy or sampling what no gate can hold."""
    from collect.store import RUN_FILE, read_run

    made = read_run(run).configuration
    for name in ("model", "adapter", "prompt"):
        if any("\ud800" <= character <= "\udfff" for character in str(made.get(name))):
            raise InputError(f"{run / RUN_FILE}: its {name} holds half a character; restore it from a copy")
    # Parsed from JSON, a number may be infinite, NaN or an integer that no float holds.
    temperature, top_p = made.get("temperature"), made.get("top_p")
    if isinstance(temperature, int | float) and not 0 <= temperature <= sys.float_info.max:
        raise InputError(f"{run / RUN_FILE}: its temperature must be a number of at least 0; restore it from a copy")
    if isinstance(top_p, int | float) and not 0 < top_p <= 1:
        raise InputError(f"{run / RUN_FILE}: its top_p must be over 0 and at most 1; restore it from a copy")


def _is_gate(path: Path) -> bool:
    from calibrate.gate import load

    try:
        load(path)
    except InputError:
        return False
    return True
