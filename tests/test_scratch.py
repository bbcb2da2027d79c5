import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
from synthetic import make_group

from calibrate.scratch import Scratch
from collect.store import open_run


def test_arrays_are_zero_until_written_and_keep_what_is_written() -> None:
    scratch = Scratch(["a", "b"], (5, 3))
    assert {name: values.tolist() for name, values in scratch.items()} == dict.fromkeys("ab", [[0.0] * 3] * 5)
    values = np.arange(15.0).reshape(5, 3)
    scratch["b"][:] = values
    scratch["a"][[1, 4]] = values[:2]
    assert scratch["b"].tolist() == values.tolist()
    assert scratch["a"].tolist() == [[0.0] * 3, [0.0, 1.0, 2.0], [0.0] * 3, [0.0] * 3, [3.0, 4.0, 5.0]]


def test_a_column_is_in_one_piece() -> None:
    assert Scratch(["a"], (5, 3))["a"][:, 1].flags.c_contiguous


def test_rows_are_of_all_arrays_and_no_longer_the_same_ones() -> None:
    scratch = Scratch(["a", "b"], (3, 2))
    scratch["a"][:] = [[1, 2], [3, 4], [5, 6]]
    kept = scratch.rows(np.array([True, False, True]))
    scratch["a"][:] = 0
    assert {name: values.tolist() for name, values in kept.items()} == {"a": [[1, 2], [5, 6]], "b": [[0, 0], [0, 0]]}


def test_an_array_that_is_forgotten_is_not_there() -> None:
    scratch = Scratch(["a", "b", "c"], (2, 2))
    scratch["c"][:] = 7
    scratch.forget(["a"])
    assert list(scratch) == ["b", "c"]
    assert scratch["c"].tolist() == [[7, 7], [7, 7]]


def test_no_room_for_temporary_files_is_said_in_one_line(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", {"model": "tiny"}, {}) as run:
        for number in range(20):
            run.add(make_group(random.Random(number), number=number))
    done = subprocess.run(
        [sys.executable, "-m", "sr", "calibrate", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        # Without caches of bytecode, which the limit would cut short too.
        env={"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)),
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: temporary files of 1 MB cannot be written (File too large); set TMPDIR to a roomy folder"
    ]
    assert not (tmp_path / "run" / "signals.parquet").exists()
