"""The contract that every engine must pass, held against a plain forward pass of transformers."""

import asyncio
from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from collect.engine import Completion, Engine, Request, Sampling, derive_seed, open_engine
from collect.errors import EngineFault, InputError
from collect.policy import Policy, load_tokenizer

OPENING = "You are in a room. Looking quickly around you, you see a bed 1, a desk 1. Your task is to: find a pen."
NEVER = frozenset({-1})  # no token stops the reply


@pytest.fixture(scope="module")
def bare(small_policy: Policy) -> Policy:
    return Policy(small_policy.name, small_policy.model)


@pytest.fixture(scope="module", params=["transformers"])
def engine(request: pytest.FixtureRequest, bare: Policy) -> Iterator[Engine]:
    engine = open_engine(request.param, bare, deterministic=True)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(bare: Policy) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(bare.model, dtype=torch.float32).eval()
    return model


@pytest.fixture(scope="module")
def opening(bare: Policy) -> tuple[int, ...]:
    return tuple(load_tokenizer(bare)(OPENING)["input_ids"])


def ask(engine: Engine, *requests: Request) -> list[Completion]:
    async def gather() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    return asyncio.run(gather())


def request(prompt: tuple[int, ...], seed: int = 1, name: str = "t", **sampling: float) -> Request:
    settings = {"temperature": 1.0, "max_tokens": 12, **sampling}
    return Request(name, prompt, NEVER, seed, Sampling(**settings))  # type: ignore[arg-type]


@torch.inference_mode()
def expected_logits(model: torch.nn.Module, prompt: tuple[int, ...], reply: tuple[int, ...]) -> torch.Tensor:
    """Logits (reply, vocabulary) from which a plain forward pass would sample each token of the reply."""
    logits: torch.Tensor = model(torch.tensor([[*prompt, *reply]])).logits[0]
    return logits[len(prompt) - 1 : -1].double()


def expected_logprobs(model: torch.nn.Module, prompt: tuple[int, ...], reply: tuple[int, ...], t: float) -> list[float]:
    table = torch.log_softmax(expected_logits(model, prompt, reply) / t, dim=-1)
    return [float(row[token]) for row, token in zip(table, reply, strict=True)]


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


def test_the_seed_decides_the_reply(engine: Engine, opening: tuple[int, ...]) -> None:
    same = ask(engine, request(opening, seed=3, name="a"), request(opening, seed=3, name="b"))
    assert same[0] == same[1]
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


def test_requests_together_are_answered_as_each_alone(engine: Engine, opening: tuple[int, ...]) -> None:
    requests = [request(opening[: 12 + i], seed=i, name=f"together {i}") for i in range(6)]
    together = ask(engine, *requests)
    for i, expected in enumerate(together):
        (alone,) = ask(engine, request(opening[: 12 + i], seed=i, name=f"alone {i}"))
        assert alone == expected


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
    engine: Engine, opening: tuple[int, ...]
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
    assert asyncio.run(abort_and_ask_again()) == expected


def test_requests_given_up_at_any_moment_leave_the_engine_answering(engine: Engine, opening: tuple[int, ...]) -> None:
    async def give_up() -> None:
        for number in range(20):
            running = asyncio.create_task(engine.generate(request(opening, name=f"given up {number}", max_tokens=4)))
            await asyncio.sleep(0.02 * number)
            running.cancel()
            await asyncio.wait([running])

    (before,) = ask(engine, request(opening, name="before"))
    asyncio.run(give_up())
    assert ask(engine, request(opening, name="after")) == [before]


def test_a_prompt_too_long_for_the_context_is_a_fault(engine: Engine) -> None:
    with pytest.raises(EngineFault, match="no room"):
        ask(engine, request((5,) * (engine.context - 11)))


def test_a_new_adapter_serves_every_later_request_and_can_be_taken_back(
    engine: Engine, bare: Policy, small_policy: Policy, opening: tuple[int, ...]
) -> None:
    (before,) = ask(engine, request(opening, name="kept"))
    asyncio.run(engine.set_adapter(small_policy))
    (adapted,) = ask(engine, request(opening, name="kept"))
    assert adapted.logprobs == pytest.approx(_peft_logprobs(small_policy, opening, adapted.token_ids), abs=1e-3)
    asyncio.run(engine.set_adapter(bare))
    (after,) = ask(engine, request(opening, name="kept"))
    assert after == before
    assert adapted.logprobs != before.logprobs


def _peft_logprobs(policy: Policy, prompt: tuple[int, ...], reply: tuple[int, ...]) -> list[float]:
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(policy.model, dtype=torch.float32)
    return expected_logprobs(PeftModel.from_pretrained(base, policy.adapter).eval(), prompt, reply, t=1.0)


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
    with pytest.raises(InputError, match="--engine nothing: unknown; one of auto, transformers"):
        open_engine("nothing", bare)


def test_seeds_differ_by_every_part_and_fit_int64() -> None:
    seeds = {derive_seed(0, "a", i, j) for i in range(50) for j in range(50)} | {derive_seed(0, "a", "1", 0)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)
