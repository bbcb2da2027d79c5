import json
import random
from pathlib import Path

import numpy as np
import pytest
from exported import LOG, brought, exported
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import make_group

from calibrate.rollouts import read_rollouts
from collect.store import open_run, scan

MUG = "pick_and_place_simple-Mug-None-Shelf-1/trial_T1"


def test_the_log_becomes_the_rows_that_it_tells_of(tmp_path: Path) -> None:
    imported = brought(LOG, tmp_path / "run")
    groups = scan(tmp_path / "run", "groups").collect()
    assert groups["group_id"].to_list() == [
        f"{MUG}#0",
        "look_at_obj_in_light-Book-None-DeskLamp-3/trial_T2#0",
        f"{MUG}#1",
    ]
    assert groups["task_type"].to_list() == ["pick_and_place_simple", "look_at_obj_in_light", "pick_and_place_simple"]
    assert groups["split"].unique().to_list() == ["valid_seen"]
    assert groups.select("group_size", "horizon", "seconds", "rewards").rows() == [
        (2, 5, 12.5, [1.0, 0.0]),
        (2, 5, 13.5, [0.0, 0.0]),
        (2, 5, 14.5, [1.0, 1.0]),
    ]
    trajectories = scan(tmp_path / "run", "trajectories").collect()
    assert trajectories.select("length", "won", "ending").rows() == [
        (4, True, "won"),
        (5, False, "horizon"),
        (5, False, "horizon"),
        (5, False, "horizon"),
        (4, True, "won"),
        (5, True, "won"),
    ]
    assert trajectories["actions"][1].to_list() == ["go to desk 1", "look", "look", "inventory", "go to shelf \u2028 1"]
    steps = scan(tmp_path / "run", "steps").collect()
    assert steps.row(3, named=True) == {
        "group_id": f"{MUG}#0",
        "trajectory": 0,
        "step": 4,
        "observation": "You see step 3.",
        "reply": "Thought: I should move mug 1 to shelf 1.\nAction: move mug 1 to shelf 1",
        "action": "move mug 1 to shelf 1",
        "reward": 1.0,
    } | dict.fromkeys(
        (
            *("admissible_commands", "match", "prompt_tokens", "reply_tokens", "reply_logprob"),
            *("engine_seconds", "environment_seconds"),
        )
    )
    assert (imported.groups, imported.trajectories, imported.steps) == (3, 6, 28)
    assert (imported.sizes, imported.horizons, imported.horizon) == ({2: 3}, {5: 3}, None)
    assert imported.null == {
        "groups": ["policy_version", "seed", "started"],
        "trajectories": ["reply_tokens", "token_ids", "policy_mask", "logprobs", "final_observation"],
        "steps": [
            *("admissible_commands", "match", "prompt_tokens", "reply_tokens", "reply_logprob"),
            *("engine_seconds", "environment_seconds"),
        ],
    }
    assert (imported.malformed.total, imported.left_out.total, imported.torn) == (0, 0, [])


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["look", "\u2028", "\u0085", ""]
)


@given(
    plans=st.lists(
        st.lists(st.tuples(st.lists(words, max_size=6), st.booleans()), min_size=3, max_size=3), min_size=1, max_size=4
    ),
    ascii_only=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_run_that_is_exported_and_imported_has_the_same_actions_rewards_and_signals(
    tmp_path_factory: pytest.TempPathFactory, plans: list[list[tuple[list[str], bool]]], ascii_only: bool
) -> None:
    folder, rng = tmp_path_factory.mktemp("round"), random.Random(0)
    groups = [
        make_group(rng, 3, 6, number=n, actions=[a for a, _ in plan], won=[w for _, w in plan])
        for n, plan in enumerate(plans)
    ]
    with open_run(folder / "own", {}, {}) as run:
        for group in groups:
            run.add(group)
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(exported(g), ensure_ascii=ascii_only) + "\n" for g in groups), newline="\n")
    assert brought(log, folder / "theirs").groups == len(groups)

    told = ("group_id", "trajectory", "reward", "won", "length", "actions", "action_symbols")
    own, theirs = (scan(folder / n, "trajectories").select(told).collect().rows() for n in ("own", "theirs"))
    assert theirs == own
    one, other = (read_rollouts(folder / name, 1e-8) for name in ("own", "theirs"))
    unknown = {"commands_reached", "refused_share", "mean_logprob"}
    known_steps = sum(len(actions) for plan in plans for actions, _ in plan)
    assert set(other.signals) == set(one.signals) - (unknown if known_steps else set())
    for name, values in other.signals.items():
        assert np.array_equal(values, one.signals[name])
    assert other.outcomes.tolist() == one.outcomes.tolist()
    assert other.eligible.tolist() == one.eligible.tolist()
    assert one.step_cost is not None
    assert other.step_cost is not None
    assert other.step_cost.after.tolist() == one.step_cost.after.tolist()


def test_lines_that_cannot_be_read_are_counted_and_named(tmp_path: Path) -> None:
    good = LOG.read_text().split("\n")[0]
    broken = json.loads(good)
    lines = [
        good.encode(),
        b"{not json}",
        b"[1, 2]",
        b'{"task_id": "x"}',
        json.dumps(broken | {"group_size": 3}).encode(),
        json.dumps(broken | {"max_steps": 4}).encode(),
        json.dumps(broken | {"trajectories": broken["trajectories"][:1], "group_size": 1}).encode(),
        good.replace('"total_reward": 1.0', '"total_reward": NaN', 1).encode(),
        good.replace('"total_reward": 1.0', '"total_reward": true', 1).encode(),
        good.encode().replace(b"You see step 0.", b"You see \xff", 1),
        b"",
        good.encode(),
        good.encode()[:500],
    ]
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join(lines))
    imported = brought(log, tmp_path / "run")
    assert imported.groups == 2
    assert imported.malformed.total == 9
    assert [told.partition(": ")[0] for told in imported.malformed.first] == [
        f"log.jsonl, line {number}" for number in range(2, 11)
    ]
    told = "\n".join(imported.malformed.first)
    assert "2 trajectories, but group_size 3" in told
    assert "5 steps, but max_steps 4" in told
    assert "1 trajectories; a group has at least 2" in told
    assert "line 8: trajectories.0.total_reward: Input should be a finite number" in told
    assert imported.torn == ["log.jsonl, line 13: cut off in the middle; left out"]


def test_what_is_optional_may_be_missing(tmp_path: Path) -> None:
    steps = [{"action": "look"}, {"action": None}]
    group = {"task_id": "mine", "max_steps": 2, "trajectories": [{"total_reward": 0.5, "steps": steps}] * 2}
    (tmp_path / "log.jsonl").write_text(json.dumps(group))
    imported = brought(tmp_path / "log.jsonl", tmp_path / "run")
    rows = scan(tmp_path / "run", "trajectories").select("actions", "won", "ending").collect().rows()
    assert rows == [(["look", ""], None, "horizon")] * 2
    assert {"split", "task_type", "seconds"} < set(imported.null["groups"])
    assert {"observation", "reply", "reward"} < set(imported.null["steps"])
