"""Matched arms: which runs a command makes."""

from pathlib import Path

from collect.policy import SMALL_MODEL, Policy
from train.arms import arms_of
from train.session import Plan
from train.settings import gather, resolve

POLICY = Policy(SMALL_MODEL, "folder")


def plan_of(**flags: object) -> Plan:
    settings = resolve(gather(None, {"engine": "transformers", **flags}), POLICY)
    return Plan(settings, POLICY, settings.configuration(POLICY))


def test_arms_are_runs_that_differ_in_gate_mode_and_seed_and_in_nothing_else() -> None:
    runs = arms_of(plan_of(arms="off,on", seeds="7,13", threshold=0.1), Path("AB"))
    assert [str(folder) for folder, _ in runs] == ["AB/off-7", "AB/on-7", "AB/off-13", "AB/on-13"]
    assert [(plan.configuration["arm"], plan.configuration["seed"]) for _, plan in runs] == [
        ("off", 7),
        ("on", 7),
        ("off", 13),
        ("on", 13),
    ]
    same = {"arm", "seed", "gate_mode"}
    rest = [{name: value for name, value in plan.configuration.items() if name not in same} for _, plan in runs]
    assert all(configuration == rest[0] for configuration in rest)
    assert all(plan.settings.arms is None for _, plan in runs)


def test_without_seeds_the_arms_have_the_seed_of_the_run() -> None:
    runs = arms_of(plan_of(arms="off,on", seed=5), Path("AB"))
    assert [(str(folder), plan.settings.seed) for folder, plan in runs] == [("AB/off-5", 5), ("AB/on-5", 5)]


def test_without_arms_it_is_one_run_in_the_folder_itself() -> None:
    plan = plan_of()
    assert arms_of(plan, Path("run")) == [(Path("run"), plan)]
