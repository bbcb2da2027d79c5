"""The learner: its gradient is that of the formula, its state comes back bit for bit, and nothing makes it crash."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learners import (
    ALPHA,
    HERE,
    RANK,
    SIZES,
    TEMPERATURE,
    gradient,
    make_batch,
    plain_logprobs,
    settings_of,
    tiny_policy,
)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from collect.errors import InputError
from collect.policy import Policy, load_model
from train.batch import Example
from train.layout import Layout
from train.learner import Learner, LearnerSettings

CAP = 2.0
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return tiny_policy(tmp_path_factory.mktemp("tiny"))


def learner_of(policy: Policy, **changes: Any) -> Learner:
    return Learner(policy, settings_of(**changes), HERE)


def reference(
    policy: Policy, batch: Sequence[Example], denominator: float, cap: float | None = CAP
) -> tuple[float, dict[str, torch.Tensor], list[float], list[float]]:
    """Loss, gradient, importance weights before the cap and |differences|: float64, one trajectory at a time, all
    logits at once, the adapter added to the weights by hand."""
    model = AutoModelForCausalLM.from_pretrained(policy.model, dtype=torch.float64, attn_implementation="sdpa")
    assert policy.adapter is not None
    stored = load_file(policy.adapter / "adapter_model.safetensors")
    adapter = {name: weight.double().requires_grad_() for name, weight in stored.items()}
    weights = dict(model.named_parameters())
    for name in [name for name in adapter if ".lora_A." in name]:
        layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight") + ".weight"
        product = adapter[name.replace(".lora_A.", ".lora_B.")] @ adapter[name]
        weights[layer] = weights[layer].detach() + ALPHA / RANK * product

    def forward(**inputs: Any) -> Any:
        return torch.func.functional_call(model, weights, (), inputs)

    loss = torch.zeros((), dtype=torch.float64)
    ratios, differences = [], []
    for example in batch:
        if not example.logprobs:
            continue
        logprobs = plain_logprobs(forward, example)
        off = logprobs.detach() - torch.tensor(example.logprobs, dtype=torch.float64)
        weight = torch.ones_like(off) if cap is None else torch.minimum(off.exp(), torch.tensor(cap))
        loss = loss - (weight * example.advantage * logprobs).sum() / denominator
        if example.advantage:
            ratios += off.exp().tolist()
            differences += off.abs().tolist()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: weight.grad for name, weight in adapter.items() if weight.grad is not None}
    return float(loss.detach()), gradients, ratios, differences


def assert_same_gradient(
    got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float, factor: float = 1.0
) -> None:
    named = {name.replace(".default.weight", ".weight"): tensor.double() for name, tensor in got.items()}
    wanted = {name.replace(".default.weight", ".weight"): tensor.double() * factor for name, tensor in expected.items()}
    assert named.keys() == wanted.keys()
    size = math.sqrt(sum(float(tensor.square().sum()) for tensor in wanted.values()))
    error = math.sqrt(sum(float((named[name] - wanted[name]).square().sum()) for name in wanted))
    assert size > 0
    assert error <= tolerance * size


# What it computes


@pytest.mark.parametrize(
    ("normalisation", "constant", "denominator"),
    [
        ("trajectory", None, lambda batch: len(batch)),
        ("token", None, lambda batch: sum(sum(example.policy_mask) for example in batch)),
        ("constant", 37.5, lambda _: 37.5),
    ],
)
def test_loss_gradient_and_mismatch_are_those_of_the_formula(
    policy: Policy, normalisation: str, constant: float | None, denominator: Any, tmp_path: Path
) -> None:
    batch = make_batch()
    settings = {"normalisation": normalisation, "constant": constant, "importance_cap": CAP}
    got = gradient(learner_of(policy, **settings), batch, tmp_path / "state")
    update = learner_of(policy, **settings).update(batch)
    loss, expected, ratios, differences = reference(policy, batch, denominator(batch))
    assert_same_gradient(got, expected, 1e-5)
    norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in expected.values()))
    assert update.loss == pytest.approx(loss, rel=1e-5)
    assert update.gradient_norm == pytest.approx(norm, rel=1e-5)
    assert update.logprob_difference == pytest.approx(sum(differences) / len(differences), rel=1e-5)
    assert update.importance_weight == pytest.approx(sum(min(r, CAP) for r in ratios) / len(ratios), rel=1e-5)
    assert update.truncated == pytest.approx(sum(r > CAP for r in ratios) / len(ratios))
    assert any(r > CAP for r in ratios)
    assert update.tokens_trained == len(ratios)
    assert update.zero_advantage == pytest.approx(2 / 6)


def test_without_a_cap_there_are_no_importance_weights(policy: Policy, tmp_path: Path) -> None:
    batch = make_batch(1)
    got = gradient(learner_of(policy, importance_cap=None), batch, tmp_path / "state")
    _, expected, _, _ = reference(policy, batch, len(batch), cap=None)
    assert_same_gradient(got, expected, 1e-5)


@pytest.mark.parametrize(
    "changes", [{"micro_batch_tokens": 1}, {"micro_batch_tokens": 70}, {"gradient_checkpointing": True}]
)
def test_what_bounds_memory_does_not_change_the_gradient(
    policy: Policy, changes: dict[str, Any], tmp_path: Path
) -> None:
    batch = make_batch(2)
    whole = gradient(learner_of(policy, micro_batch_tokens=100_000), batch, tmp_path / "whole")
    assert_same_gradient(gradient(learner_of(policy, **changes), batch, tmp_path / "bounded"), whole, 1e-6)


def test_trajectories_without_advantage_dilute_the_mean_over_trajectories(policy: Policy, tmp_path: Path) -> None:
    batch = make_batch(3, (1.0, 0.0, -1.0, 0.0, 0.0, 0.5, 0.0))
    kept = [example for example in batch if example.advantage]
    diluted = gradient(learner_of(policy), batch, tmp_path / "all")
    alone = gradient(learner_of(policy), kept, tmp_path / "kept")
    assert_same_gradient(alone, diluted, 1e-6, factor=len(batch) / len(kept))


def test_a_trajectory_without_a_sampled_token_counts_and_changes_nothing_else(policy: Policy, tmp_path: Path) -> None:
    batch = make_batch(4)
    silent = Example("g", (1, 2, 3), (False, False, False), (), 2.0)
    expected = gradient(learner_of(policy), batch, tmp_path / "all")
    got = gradient(learner_of(policy), [silent, *batch], tmp_path / "silent")
    assert_same_gradient(got, expected, 1e-6, factor=len(batch) / (len(batch) + 1))


def test_the_gradient_is_clipped_and_its_norm_told_before(policy: Policy, tmp_path: Path) -> None:
    batch = make_batch(5)
    free = learner_of(policy).update(batch)
    clipped = learner_of(policy, max_gradient_norm=0.01)
    assert clipped.update(batch).gradient_norm == pytest.approx(free.gradient_norm)
    clipped.save_state(tmp_path / "state")
    moments = load_file(tmp_path / "state" / "state.safetensors")
    squares = [float(m.square().sum()) for name, m in moments.items() if name.startswith("exp_avg.")]
    assert math.sqrt(sum(squares)) * 10 == pytest.approx(0.01, rel=1e-3)


def test_updates_make_good_trajectories_likelier_and_bad_ones_less_likely(policy: Policy) -> None:
    batch = make_batch(6, (1.0, -1.0))

    def total(adapted: Policy) -> list[float]:
        model = load_model(adapted, torch.float32, "cpu", "eager")
        return [float(plain_logprobs(model, example).sum()) for example in batch]

    before = total(policy)
    learner = learner_of(policy)
    for _ in range(5):
        learner.update(batch)
    assert policy.adapter is not None
    learner.save_adapter(policy.adapter.with_name("learnt"))
    after = total(replace(policy, adapter=policy.adapter.with_name("learnt")))
    assert after[0] > before[0] + 1
    assert after[1] < before[1] - 1


def window_model(folder: Path) -> None:
    MistralForCausalLM(MistralConfig(**SIZES, sliding_window=6)).save_pretrained(folder)


def test_a_sliding_window_is_kept(tmp_path: Path) -> None:
    window_model(tmp_path)
    model = MistralForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    batch = sampled_by(model, make_batch(7))
    update = learner_of(Policy("window", str(tmp_path))).update(batch)
    assert update.logprob_difference == pytest.approx(0, abs=1e-5)


def sampled_by(model: Any, batch: Sequence[Example]) -> list[Example]:
    """The batch with the model's own log-probabilities as the sampler's."""
    with torch.no_grad():
        return [replace(example, logprobs=tuple(plain_logprobs(model, example).tolist())) for example in batch]


# Batches that teach nothing


NOTHING: dict[str, list[Example]] = {
    "no examples": [],
    "no example has an advantage and a sampled token": [
        *make_batch(8, (0.0, 0.0)),
        Example("g", (1, 2), (False, False), (), 1.0),
        Example("g", (), (), (), -1.0),
    ],
}


@pytest.mark.parametrize("reason", NOTHING)
def test_a_batch_that_teaches_nothing_is_skipped_and_moves_nothing(policy: Policy, reason: str, tmp_path: Path) -> None:
    learner = learner_of(policy)
    learner.update(make_batch())
    learner.save_state(tmp_path / "before")
    update = learner.update(NOTHING[reason])
    learner.save_state(tmp_path / "after")
    assert update.skipped == reason
    assert (update.number, update.loss, update.gradient_norm, update.tokens_trained) == (1, 0.0, 0.0, 0)
    assert (update.logprob_difference, update.importance_weight, update.truncated) == (None, None, None)
    for file in ("state.safetensors", "state.json"):
        assert (tmp_path / "before" / file).read_bytes() == (tmp_path / "after" / file).read_bytes()


def test_an_update_leaves_tiny_numbers_to_others(policy: Policy) -> None:
    learner_of(policy).update(make_batch())
    assert sys.float_info.min / 2 > 0  # statistics in this process need them


def test_a_gradient_that_is_not_finite_is_skipped_and_forgotten(policy: Policy, tmp_path: Path) -> None:
    learner, batch = learner_of(policy), make_batch()
    huge = [replace(example, advantage=example.advantage * 1e38) for example in batch]
    update = learner.update(huge)
    assert update.skipped == "the gradient is not finite"
    assert (update.number, update.loss, update.gradient_norm, update.logprob_difference) == (0, 0.0, 0.0, None)
    assert_same_gradient(
        gradient(learner, batch, tmp_path / "a"), gradient(learner_of(policy), batch, tmp_path / "b"), 1e-7
    )


# What it writes


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_saved_state_goes_on_bit_for_bit(policy: Policy, dtype: str, tmp_path: Path) -> None:
    through = learner_of(policy, dtype=dtype)
    for seed in range(4):
        through.update(make_batch(seed))
        if seed == 1:
            through.save_state(tmp_path / "middle")
    through.save_state(tmp_path / "through")
    through.save_adapter(tmp_path / "through-adapter")
    resumed = learner_of(replace(policy, adapter=None), dtype=dtype, rank=RANK, alpha=ALPHA, seed=5)
    resumed.load_state(tmp_path / "middle")
    assert resumed.number == 2
    for seed in (2, 3):
        resumed.update(make_batch(seed))
    resumed.save_state(tmp_path / "resumed")
    resumed.save_adapter(tmp_path / "resumed-adapter")
    for one, other in (("through", "resumed"), ("through-adapter", "resumed-adapter")):
        for file in (tmp_path / one).iterdir():
            assert file.read_bytes() == (tmp_path / other / file.name).read_bytes(), file.name


def test_a_state_before_the_first_update_can_be_gone_on_from(policy: Policy, tmp_path: Path) -> None:
    learner_of(policy).save_state(tmp_path / "first")
    other = learner_of(policy)
    other.update(make_batch())
    other.load_state(tmp_path / "first")
    other.save_state(tmp_path / "again")
    names = ("state.safetensors", "state.json")
    assert all((tmp_path / "first" / n).read_bytes() == (tmp_path / "again" / n).read_bytes() for n in names)


def test_sleep_changes_nothing(policy: Policy, tmp_path: Path) -> None:
    learners = {name: Learner(policy, settings_of(), Layout("cpu", shared=True)) for name in ("sleeper", "other")}
    for seed in range(3):
        for name, learner in learners.items():
            learner.update(make_batch(seed))
            if name == "sleeper":
                learner.sleep()
                learner.save_state(tmp_path / "asleep")
                learner.save_adapter(tmp_path / "adapter")
    for name, learner in learners.items():
        learner.save_state(tmp_path / name)
    states = {(tmp_path / name / "state.safetensors").read_bytes() for name in ("asleep", *learners)}
    assert len(states) == 1


@pytest.mark.parametrize("damage", ["absent", "cut short", "other rank", "no number"])
def test_a_state_that_cannot_be_gone_on_from_is_refused(policy: Policy, damage: str, tmp_path: Path) -> None:
    rank = RANK + 1 if damage == "other rank" else RANK
    folder = tmp_path / "state"
    learner_of(replace(policy, adapter=None), rank=rank, alpha=ALPHA).save_state(folder)
    if damage == "absent":
        folder = tmp_path / "nowhere"
    elif damage == "cut short":
        (folder / "state.safetensors").write_bytes((folder / "state.safetensors").read_bytes()[:-100])
    elif damage == "no number":
        (folder / "state.json").write_text("{}")
    with pytest.raises(InputError, match=f"{folder}: is not a state that this learner can go on from"):
        learner_of(policy).load_state(folder)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_saved_adapter_is_what_the_engines_load(policy: Policy, dtype: str, tmp_path: Path) -> None:
    learner = learner_of(policy, dtype=dtype)
    learner.update(make_batch())
    learner.save_adapter(tmp_path / "adapter")
    model = load_model(replace(policy, adapter=tmp_path / "adapter"), torch.float32, "cpu", "eager")
    update = learner.update(sampled_by(model, make_batch(9)))
    assert update.logprob_difference == pytest.approx(0, abs=0.05 if dtype == "bf16" else 1e-5)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny"
    assert config["target_modules"] == sorted(config["target_modules"])
    assert (config["r"], config["lora_alpha"]) == (RANK, ALPHA)


def test_a_saved_adapter_replaces_the_one_there_and_leaves_nothing_else(policy: Policy, tmp_path: Path) -> None:
    learner = learner_of(policy)
    learner.save_adapter(tmp_path / "adapter")
    first = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    learner.update(make_batch())
    learner.save_adapter(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes() != first
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


# What it starts from


def test_a_fresh_adapter_changes_nothing_and_is_drawn_by_the_seed(policy: Policy, tmp_path: Path) -> None:
    base = replace(policy, adapter=None)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        learner_of(base, seed=seed).save_adapter(tmp_path / name)
    a, b, c = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (16, 32)
    assert config["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    model = AutoModelForCausalLM.from_pretrained(base.model)
    update = learner_of(base).update(sampled_by(model, make_batch()))
    assert update.logprob_difference == pytest.approx(0, abs=1e-5)


def test_targets_are_those_asked_for(policy: Policy, tmp_path: Path) -> None:
    learner_of(replace(policy, adapter=None), target_modules=("v_proj", "q_proj")).save_adapter(tmp_path / "a")
    names = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in names} == {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rank": 8}, "--rank 8: --adapter .* has 4; leave the flag out"),
        ({"alpha": 8}, "--alpha 8: --adapter .* has 12"),
        ({"target_modules": ("q_proj",)}, "--target-modules q_proj: --adapter .* has down_proj,"),
    ],
)
def test_an_adapter_of_another_shape_than_asked_for_is_refused(
    policy: Policy, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        learner_of(policy, **changes)
    learner_of(policy, rank=RANK, alpha=ALPHA)


def test_targets_that_the_model_lacks_are_refused(policy: Policy) -> None:
    with pytest.raises(InputError, match="--model tiny: cannot be trained"):
        learner_of(replace(policy, adapter=None), target_modules=("nonesuch",))


def test_a_head_cannot_be_trained(policy: Policy) -> None:
    with pytest.raises(InputError, match="an adapter on its last layer, lm_head, cannot be trained"):
        learner_of(replace(policy, adapter=None), target_modules=("lm_head",))


def test_a_model_that_does_more_to_its_logits_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=30.0)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="--model capped: the learner does not know how it is built"):
        learner_of(Policy("capped", str(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"temperature": 0.0}, "--temperature 0.0: must be above 0"),
        ({"learning_rate": float("nan")}, "--learning-rate nan: must be above 0"),
        ({"rank": 0}, "--rank 0: must be above 0"),
        ({"importance_cap": 0.5}, "--importance-cap 0.5: must be at least 1"),
        ({"normalisation": "constant"}, "--normalisation constant: --constant goes with"),
        ({"constant": 3.0}, "--normalisation trajectory: --constant goes with"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        settings_of(**changes)


# Several processes, and the real model


def test_two_processes_take_the_step_of_one(policy: Policy, tmp_path: Path) -> None:
    alone = learner_of(policy)
    norms = [alone.update(make_batch(seed)).gradient_norm for seed in (0, 1)]
    alone.save_state(tmp_path / "alone")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(TESTS / "learner_peer.py"), policy.model, str(policy.adapter), str(tmp_path)]
    done = subprocess.run([*command, *script], capture_output=True, text=True, timeout=300, cwd=TESTS)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["norms"] == pytest.approx(norms, rel=1e-5)
    assert said["skipped"] == "no examples"
    one, both = (load_file(tmp_path / name / "state.safetensors") for name in ("alone", "both"))
    assert_same_gradient(
        {name: tensor for name, tensor in both.items() if name.startswith("exp_avg.")},
        {name: tensor for name, tensor in one.items() if name.startswith("exp_avg.")},
        2e-6,
    )
    # The one that followed took the same steps to the last bit, those after a loaded state too.
    followed = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("led", "followed")]
    assert followed[0] == followed[1]


def test_the_default_small_model_learns_in_bf16(small_policy: Policy, opening: tuple[int, ...], tmp_path: Path) -> None:
    mask = (False,) * 30 + (True,) * (len(opening) - 30)
    texts = [Example("g", opening[:end], mask[:end], (0.0,) * (end - 30), a) for end, a in ((60, 1.0), (66, -1.0))]
    batch = sampled_by(load_model(small_policy, torch.bfloat16, "cpu", "sdpa"), texts)
    learner = Learner(small_policy, LearnerSettings(temperature=TEMPERATURE, learning_rate=1e-4), HERE)
    update = learner.update(batch)
    assert update.skipped is None
    assert update.logprob_difference is not None
    assert update.logprob_difference < 0.1  # what the merge of the adapter in bf16 rounds away
    assert update.peak_memory > 100 << 20
    learner.save_adapter(tmp_path / "adapter")
    learnt = load_model(replace(small_policy, adapter=tmp_path / "adapter"), torch.bfloat16, "cpu", "sdpa")
    with torch.no_grad():
        gains = [float(plain_logprobs(learnt, e).sum()) - sum(e.logprobs) for e in batch]
    assert gains[0] > gains[1]
