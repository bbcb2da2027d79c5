"""Where a run goes on from; the learner's own state is tested with the learner."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from calibrate.rules import Threshold
from collect.errors import InputError
from train import checkpoint
from train.audit import Tally
from train.checkpoint import Progress
from train.gating import Gating

RULE = Threshold(signal="prefix_edit_distance_mean", step=2, threshold=0.4)
PROGRESS = Progress(12, Gating("on", 0.9, RULE, Tally(5, 4, 3), since=3), "adapters/000011", {"b": 2, "a": 1}, 7)


@dataclass
class State:
    """What stands for a learner here: a state that is written, or cannot be."""

    content: str = "state"
    fails: bool = False

    def save_state(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "state.json").write_text(self.content)
        if self.fails:
            raise OSError(28, "No space left on device")


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, PROGRESS, State())  # type: ignore[arg-type]
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert checkpoint.load(newest) == PROGRESS
    assert (checkpoint.learner_state(newest) / "state.json").read_text() == "state"


def test_only_the_newest_is_kept(tmp_path: Path) -> None:
    for iteration in (0, 1, 2, 10):
        checkpoint.save(tmp_path, Progress(iteration, Gating("off", 0.9)), State())  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["iteration-000010"]


def test_one_that_could_not_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, Progress(1, Gating("off", 0.9)), State("before"))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, Progress(2, Gating("off", 0.9)), State(fails=True))  # type: ignore[arg-type]
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert checkpoint.load(newest).iteration == 1
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["iteration-000001"]


def test_what_a_killed_process_left_half_written_is_no_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, Progress(1, Gating("off", 0.9)), State())  # type: ignore[arg-type]
    half = tmp_path / "checkpoint" / ".iteration-000002.4711.tmp"
    half.mkdir()
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert newest.name == "iteration-000001"
    checkpoint.save(tmp_path, Progress(2, Gating("off", 0.9)), State())  # type: ignore[arg-type]
    assert not half.exists()


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"iteration": 1}'])
def test_a_damaged_one_is_refused_by_name(tmp_path: Path, content: str) -> None:
    checkpoint.save(tmp_path, PROGRESS, State())  # type: ignore[arg-type]
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    (newest / "progress.json").write_text(content)
    with pytest.raises(InputError, match=r"progress\.json: damaged"):
        checkpoint.load(newest)
