"""The configuration of a training run: files, flags, defaults, complaints."""

import json
from pathlib import Path
from typing import Any

import pytest

from collect.errors import InputError
from collect.policy import LARGE_MODEL, SMALL_MODEL, Policy
from train.settings import Settings, gather, read_config, resolve


def test_flags_override_the_file_and_the_file_overrides_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('groups = 3\nmax-steps = 12\nthreshold = 0.25\ntarget_modules = ["q_proj", "v_proj"]\nseed = 4\n')

    settings = gather(file, {"groups": 5, "threshold": "off"})

    assert (settings.groups, settings.horizon, settings.threshold, settings.seed) == (5, 12, "off", 4)
    assert settings.target_modules == ("q_proj", "v_proj")
    assert settings.temperature == Settings().temperature


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"groups": 0}, "--groups 0: must be at least 1"),
        ({"horizon": 0}, "--max-steps 0: must be at least 1"),
        ({"group_size": 1}, "--group-size 1: must be at least 2"),
        ({"threshold": "low"}, "--threshold low: must be auto, off or a number"),
        ({"threshold": "nan"}, "--threshold nan: input should be a finite number"),
        ({"gate_mode": "of"}, "--gate-mode of: must be 'off', 'shadow' or 'on'"),
        ({"target_precision": 1.5}, "--target-precision 1.5: must be at most 1"),
        ({"temperature": 0.0}, "--temperature 0.0: must be above 0"),
        ({"audit": -0.1}, "--audit -0.1: must be at least 0"),
        ({"seeds": "7,13"}, "--seeds goes with --arms: --arms off,on --seeds 7,13"),
        ({"arms": "on,on"}, "--arms on,on: names one twice"),
        ({"arms": "on", "seeds": "7,13,7"}, "--seeds 7,13,7: names one twice"),
        (
            {"arms": "off,on", "threshold": "off"},
            "--arms off,on: no arm has a gate with --threshold off; drop one of the two",
        ),
        ({"arms": "off,up", "seeds": "1"}, "--arms off,up: must be 'off', 'shadow' or 'on'"),
        ({"at_step": 30}, "--at-step 30: must be under --max-steps 30"),
        ({"importance_cap": 0.5}, "--importance-cap 0.5: must be at least 1, or 0 for no weights"),
        ({"threshold": "off", "gate": "g"}, "--gate g: --threshold off does without a gate; give one of the two"),
        ({"from_run": "r", "refill": 2}, "--from: a frozen run has no fresh groups for --refill or --skip-prompts"),
        ({"normalisation": "constant"}, "--normalisation constant: --constant goes with `constant` and nothing else"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_what_it_must_be(flags: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        gather(None, flags)
    assert str(refused.value) == complaint


def test_an_unknown_signal_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match=r"^--signal distance: unknown; one of prefix_edit_distance_mean, "):
        gather(None, {"signal": "distance"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("group = 3", "{file}: group 3: unknown option; sr train --help lists them"),
        ("groups = -1", "{file}: groups -1: must be at least 1"),
        ("groups = ", "--config {file}: not TOML"),
    ],
)
def test_a_wrong_file_is_named_with_the_key(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        gather(file, {})
    assert str(refused.value).startswith(complaint.format(file=file))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["{}", "[]", '{"facts": {}}', "not json"])
def test_a_json_file_that_is_no_run_of_training_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"not the run\.json of sr train"):
        read_config(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.toml")


def test_defaults_are_those_of_the_machine_s_policy() -> None:
    small = resolve(Settings(engine="transformers"), Policy(SMALL_MODEL, "folder"))
    large = resolve(Settings(engine="transformers"), Policy(LARGE_MODEL, LARGE_MODEL))

    assert (large.iterations, large.groups, large.eval_every, large.eval_games) == (60, 10, 10, 50)
    assert (large.prompt, large.show_commands, large.max_tokens) == ("react", True, 96)
    assert (small.prompt, small.show_commands, small.max_tokens) == ("act", False, 24)
    assert small.iterations is not None
    assert small.iterations < 60
    assert None not in (small.groups, small.eval_every, small.eval_games, small.dtype)


def test_a_resolved_setting_that_was_given_stays() -> None:
    given = Settings(engine="transformers", groups=2, prompt="react", show_commands=False)
    resolved = resolve(given, Policy(SMALL_MODEL, "folder"))
    assert (resolved.groups, resolved.prompt, resolved.show_commands, resolved.max_tokens) == (2, "react", False, 96)


def test_training_samples_without_top_p() -> None:
    assert resolve(Settings(engine="transformers"), Policy(SMALL_MODEL, "folder")).sampling.top_p == 1.0


def test_the_options_of_a_run_are_accepted_back(tmp_path: Path) -> None:
    policy = Policy(SMALL_MODEL, "folder")
    settings = resolve(gather(None, {"engine": "transformers", "groups": 3, "arms": "off,on", "seeds": "7,13"}), policy)
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"facts": {"options": settings.options(policy)}}))

    assert gather(file, {}) == settings.model_copy(update={"model": SMALL_MODEL, "adapter": "none"})


def test_the_identity_of_a_run_names_a_gate_by_what_it_holds(tmp_path: Path) -> None:
    policy = Policy(SMALL_MODEL, "folder")
    gates = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for gate, content in zip(gates, ("1", "1", "2"), strict=True):
        gate.write_text(content)
    same, equal, other = (
        resolve(Settings(engine="transformers", gate=str(gate)), policy).configuration(policy) for gate in gates
    )
    assert same == equal
    assert same["gate"] != other["gate"]


def test_how_far_a_run_goes_and_how_fast_is_not_its_identity() -> None:
    policy = Policy(SMALL_MODEL, "folder")
    once, more = (
        resolve(Settings(engine="transformers", iterations=n, concurrency=n), policy).configuration(policy)
        for n in (1, 2)
    )
    assert once == more
    assert once["arm"] == "on"
