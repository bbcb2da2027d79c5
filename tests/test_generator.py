import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import GENERATED
from hypothesis import given, settings
from hypothesis import strategies as st

from collect import draft as drafting
from collect.draft import Draft
from collect.errors import EnvironmentFault, InputError
from collect.games import SPLITS, TASK_TYPES, Game, find_games, read_game_file
from collect.generator import belongs, fill, make_games
from collect.recipe import Difficulty, Recipe, Slot, full_shares

PREPARED = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}


def contents(root: Path) -> dict[str, bytes]:
    """Every file that is not hidden, by its path."""
    paths = (path for path in root.rglob("*") if path.is_file())
    found = {path.relative_to(root): path for path in paths}
    return {str(name): path.read_bytes() for name, path in found.items() if not any(p[0] == "." for p in name.parts)}


def start_sr_games_make(root: Path, hash_seed: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    counts = ["--train", "3", "--valid-seen", "0", "--valid-unseen", "1"]
    command = [sys.executable, "-m", "sr", "games", "make", str(root), *counts, "--quiet"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


slots = st.builds(
    Slot,
    split=st.sampled_from(SPLITS),
    index=st.just(0),
    trial=st.just("trial_T00000000_000000_000000"),
    task_type=st.sampled_from(TASK_TYPES),
    difficulty=st.builds(
        Difficulty,
        receptacles_per_type=st.none() | st.integers(1, 6),
        targets=st.integers(1, 3),
        instances=st.integers(1, 3),
        absent=st.floats(0, 0.9),
    ),
    seed=st.text(max_size=8),
)


def drawn(slot: Slot) -> Draft | None:
    return drafting.draft(slot.split, slot.task_type, slot.difficulty, slot.trial, slot.random(0))


def facts(game: Draft, predicate: str) -> list[list[str]]:
    """The arguments of each fact of the beginning with this predicate, read back from the PDDL."""
    init = game.files["initial_state.pddl"].decode().split("(:init")[1].split("(:goal")[0]
    return [fact.split()[1:] for fact in re.findall(r"\(([^()]+)\)", init) if fact.split()[0] == predicate]


def test_games_lie_as_alfworlds_own_data_set_does(games_root: Path) -> None:
    name = re.compile(
        rf"({'|'.join(SPLITS)})/({'|'.join(TASK_TYPES)})-[A-Z]\w+-None-[A-Z]\w+-\d+/trial_T\d{{8}}_\d{{6}}_\d{{6}}/"
        r"(traj_data\.json|initial_state\.pddl|game\.tw-pddl)"
    )
    files = set(contents(games_root)) - {"recipe.json"}

    assert all(name.fullmatch(file) for file in files)
    assert len(files) == 3 * sum(GENERATED.values())


def test_each_task_type_has_its_share(six_games: list[Game]) -> None:
    assert sorted(game.task_type for game in six_games) == sorted(TASK_TYPES)


def test_alfworlds_own_loader_takes_the_games_and_their_walkthroughs_win_there(games_root: Path) -> None:
    program = f"""
import json, sys
from alfworld.agents.environment import get_environment
config = dict(
    env=dict(goal_desc_human_anns_prob=0, task_types=[1, 2, 3, 4, 5, 6], domain_randomization=False, expert_type="x"),
    dataset=dict(eval_id_data_path={str(games_root / "valid_seen")!r}, num_eval_games=-1),
    general=dict(training_method="dqn"), rl=dict(training=dict(max_nb_steps_per_episode=50)))
environment = get_environment("AlfredTWEnv")(config, train_eval="eval_in_distribution").init_env(batch_size=1)
for _ in range({GENERATED["valid_seen"]}):
    _, infos = environment.reset()
    path = infos["extra.gamefile"][0]
    for command in json.load(open(path))["walkthrough"]:
        _, _, _, infos = environment.step([command])
    print("played", path, infos["won"][0])
"""
    if sys.version_info >= (3, 13):
        pytest.skip("TextWorld itself plays no ALFWorld game on Python 3.13")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    played = [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("played")]
    assert sorted(path for path, _ in played) == sorted(str(g.path) for g in find_games("valid_seen", games_root))
    assert {won for _, won in played} == {"True"}


def test_killed_and_started_again_it_gives_the_same_bytes(games_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    killed = start_sr_games_make(root, hash_seed="1")
    while not list(root.glob("train/*/trial_*")) and killed.poll() is None:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    left = contents(root)

    both = [start_sr_games_make(root, hash_seed="2"), start_sr_games_make(root, hash_seed="3")]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors

    games = Counter(Path(name).parent for name in left if "/" in name)
    assert 0 < len(games) < 4, "the process was meant to be killed between two games"
    assert set(games.values()) == {3}, "a game's folder was visible before it was whole"
    assert len(contents(root)) == 4 * 3 + 1
    assert contents(root).items() <= contents(games_root).items()
    assert not list(root.glob(".partial"))


def test_the_number_of_workers_does_not_matter_and_a_larger_count_only_adds(games_root: Path, tmp_path: Path) -> None:
    made = make_games(tmp_path, {"train": 2}, workers=1)

    assert len(made) == 2
    assert contents(tmp_path).items() <= contents(games_root).items()


def test_another_seed_gives_other_games() -> None:
    first, second = (Recipe(seed=seed) for seed in (0, 1))
    pairs = zip(first.slots("train", 12), second.slots("train", 12), strict=True)

    assert not any(one.trial == other.trial or one.seed == other.seed for one, other in pairs)


def test_no_trial_is_in_two_splits_or_twice() -> None:
    trials = [slot.trial for split in SPLITS for slot in Recipe().slots(split, 500)]

    assert len(set(trials)) == len(trials) == 1500


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10), min_size=6, max_size=6).filter(any), st.integers(1, 200))
def test_shares_are_met_to_within_a_game_at_every_count(weights: list[int], count: int) -> None:
    shares = tuple(weight / sum(weights) for weight in weights)
    made = Counter(slot.task_type for slot in Recipe(shares=shares).slots("train", count))

    for task_type, share in zip(TASK_TYPES, shares, strict=True):
        assert abs(made[task_type] - share * count) <= 2
        assert share or not made[task_type]


def test_task_types_that_are_not_named_share_the_rest() -> None:
    assert full_shares({"pick_two_obj_and_place": 0.5}) == pytest.approx((0.1,) * 5 + (0.5,))
    assert full_shares({"look_at_obj_in_light": 1.0}) == (0, 1.0, 0, 0, 0, 0)
    assert full_shares({}) == pytest.approx((1 / 6,) * 6)


@pytest.mark.parametrize(
    ("shares", "complaint"),
    [
        ({"pick_three": 0.5}, "unknown task type"),
        ({"pick_and_place_simple": -0.1}, "from 0 to 1"),
        ({"pick_and_place_simple": 0.7, "pick_two_obj_and_place": 0.7}, "sum to 1.4"),
        (dict.fromkeys(TASK_TYPES, 0.1), "sum to 0.6"),
    ],
)
def test_shares_that_cannot_be_are_refused(shares: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        full_shares(shares)


@settings(max_examples=60, deadline=None)
@given(slots)
def test_a_game_is_where_it_belongs_and_not_won_at_its_beginning(slot: Slot) -> None:
    game = drawn(slot)
    if game is None:
        return
    parameters = json.loads(game.files["traj_data.json"])["pddl_params"]
    number = int(game.task.rsplit("-", 1)[1])
    types = {name: type_.removesuffix("Type") for name, type_ in facts(game, "receptacleType")}
    held = dict(facts(game, "inReceptacle"))
    wanted = [name for name, type_ in facts(game, "objectType") if type_ == f"{parameters['object_target']}Type"]
    places = [place for _, place in facts(game, "receptacleAtLocation")]

    assert (number % 100 <= 6) == (slot.split == "valid_unseen")
    assert parameters["parent_target"] not in {types[held[name]] for name in wanted}
    assert len(set(places)) == len(places) == len(types)
    assert facts(game, "atLocation")[0][1] not in places
    assert not facts(game, "isToggled")


@settings(max_examples=60, deadline=None)
@given(slots)
def test_a_game_is_as_hard_as_asked(slot: Slot) -> None:
    game = drawn(slot)
    if game is None:
        return
    wanted = json.loads(game.files["traj_data.json"])["pddl_params"]["object_target"]
    objects = Counter(type_.removesuffix("Type") for _, type_ in facts(game, "objectType"))
    receptacles = Counter(type_ for _, type_ in facts(game, "receptacleType"))
    least = 2 if slot.task_type == "pick_two_obj_and_place" else 1

    assert least <= objects.pop(wanted) <= least - 1 + slot.difficulty.targets
    assert max(objects.values(), default=0) <= slot.difficulty.instances
    assert max(receptacles.values()) <= (slot.difficulty.receptacles_per_type or 1000)


@settings(max_examples=60, deadline=None)
@given(slots)
def test_a_game_may_be_in_train_or_in_valid_seen_but_never_in_both(slot: Slot) -> None:
    game = drawn(slot)

    if game is not None:
        assert belongs(game, "train") != belongs(game, "valid_seen")


@settings(max_examples=30, deadline=None)
@given(slots)
def test_where_things_are_decides_whether_two_games_are_the_same(slot: Slot) -> None:
    game, again = drawn(slot), drawn(slot)
    other = drafting.draft(slot.split, slot.task_type, slot.difficulty, "another trial", slot.random(0))
    if game is None or again is None or other is None:
        return

    assert game == again
    assert game.files != other.files
    assert game.fingerprint == other.fingerprint
    assert belongs(game, slot.split) == belongs(other, slot.split)


def test_a_candidate_that_cannot_be_won_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slot = next(Recipe().slots("train", 1))
    honest = drafting.draft
    drawn: list[str] = []

    def faulty(*arguments: object) -> Draft | None:
        """The real drawing; only that the first candidate which belongs in train loses half of its walkthrough."""
        candidate = honest(*arguments)  # type: ignore[arg-type]
        if candidate and belongs(candidate, "train"):
            drawn.append(candidate.fingerprint)
            if len(drawn) == 1:
                return Draft(candidate.task, candidate.trial, candidate.files, candidate.walkthrough[:-1], "1")
        return candidate

    monkeypatch.setattr(drafting, "draft", faulty)

    assert fill(slot).fingerprint == drawn[1] != drawn[0]


def test_an_engine_that_wins_nothing_is_a_fault_and_not_an_endless_search(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = next(Recipe().slots("valid_unseen", 1))
    honest = drafting.draft

    def broken(*arguments: object) -> Draft | None:
        candidate = honest(*arguments)  # type: ignore[arg-type]
        return candidate and Draft(candidate.task, candidate.trial, {"game.tw-pddl": b"{}"}, (), candidate.fingerprint)

    monkeypatch.setattr(drafting, "draft", broken)

    with pytest.raises(EnvironmentFault, match="none of 20 candidates"):
        fill(slot)


def test_walkthroughs_are_short_and_know_where_to_go(six_games: list[Game]) -> None:
    for game in six_games:
        walkthrough = read_game_file(game.path).walkthrough or ()
        verb = game.task_type.split("_")[1]

        assert 3 <= len(walkthrough) <= 14
        assert verb not in PREPARED or any(command.startswith(verb) for command in walkthrough)


def test_a_folder_of_other_games_or_things_is_left_alone(tmp_path: Path) -> None:
    make_games(tmp_path / "games", {}, Recipe(seed=1))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter-1.tex").touch()
    (tmp_path / "file").touch()
    before = contents(tmp_path)

    with pytest.raises(InputError, match=r"holds games of seed 1, not 2; give another folder"):
        make_games(tmp_path / "games", {"train": 1}, Recipe(seed=2))
    with pytest.raises(InputError, match="other things than games"):
        make_games(tmp_path / "thesis", {"train": 1})
    with pytest.raises(InputError, match="give another folder"):
        make_games(tmp_path / "file", {"train": 1})

    assert contents(tmp_path) == before
