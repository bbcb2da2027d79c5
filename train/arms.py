"""Matched arms: runs that differ in what their gate does and in their seed, and in nothing else.

Runs of one seed play the same games in the same order with the same seeds of requests. Each is an ordinary run in a
folder below, `<arm>-<seed>`, and its run.json says `arm` and `seed`, by which reports pair them.
"""

from pathlib import Path

from train.session import Plan


def arms_of(whole: Plan, folder: Path) -> list[tuple[Path, Plan]]:
    """The runs of a plan and their folders, seed by seed: all arms of a seed before the next seed begins."""
    settings = whole.settings
    if settings.arms is None or settings.seeds is None:
        return [(folder, whole)]
    runs = []
    for seed in settings.seeds:
        for arm in settings.arms:
            one = settings.model_copy(update={"arms": None, "seeds": None, "gate_mode": arm, "seed": seed})
            runs.append((folder / f"{arm}-{seed}", Plan(one, whole.policy, one.configuration(whole.policy))))
    return runs
