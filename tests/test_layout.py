"""Where the learner works, from the GPUs of the machine and what torchrun says."""

import pytest

from collect.errors import InputError
from train.layout import Layout, find_layout


def torchrun(local: int, here: int, rank: int | None = None, world: int | None = None) -> dict[str, str]:
    return {
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(here),
        "RANK": str(local if rank is None else rank),
        "WORLD_SIZE": str(here if world is None else world),
    }


@pytest.mark.parametrize(
    ("gpus", "environment", "expected"),
    [
        (0, {}, Layout("cpu", shared=False)),
        (1, {}, Layout("cuda:0", shared=True)),
        (2, {}, Layout("cuda:1", shared=False)),
        (0, torchrun(1, 2), Layout("cpu", shared=False, rank=1, learners=2)),
        (2, torchrun(0, 2), Layout("cuda:0", shared=True, rank=0, learners=2)),
        (2, torchrun(1, 2), Layout("cuda:1", shared=False, rank=1, learners=2)),
        (3, torchrun(0, 2), Layout("cuda:1", shared=False, rank=0, learners=2)),
        (3, torchrun(1, 2), Layout("cuda:2", shared=False, rank=1, learners=2)),
        (2, torchrun(0, 2, rank=2, world=4), Layout("cuda:0", shared=False, rank=2, learners=4)),
    ],
)
def test_the_learner_has_a_gpu_of_its_own_where_there_is_one(
    gpus: int, environment: dict[str, str], expected: Layout
) -> None:
    assert find_layout(gpus, environment) == expected


def test_more_learners_than_gpus_are_refused() -> None:
    with pytest.raises(InputError, match="torchrun --nproc-per-node 3: this machine has 2 GPUs; start at most 2"):
        find_layout(2, torchrun(0, 3))
