"""Tokens and costs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.emulator.dialects.anthropic import wire as anthropic_wire
from batchbench.emulator.dialects.openai import wire as openai_wire
from batchbench.emulator.dialects.openai.codec import OpenAICodec
from batchbench.emulator.jobs import tokens
from batchbench.emulator.jobs.answers import REPLY_FAULTS, changed_reply
from batchbench.emulator.personas.interface import PersonaQuery, PersonaReply
from batchbench.emulator.personas.respond import echo, find_persona
from batchbench.providers.prices import EMULATOR

anything = st.text(alphabet=st.characters(exclude_categories=[]))


@given(anything)
def test_a_prompt_never_has_more_tokens_than_bytes_and_overhead(text: str) -> None:
    count = tokens.input_tokens(tokens.utf8_bytes(text), 1)
    assert count <= len(text.encode("utf-8", "surrogatepass")) + 7
    assert count >= 7


@given(anything, st.integers(0, 30))
def test_truncation_keeps_the_first_words(text: str, limit: int) -> None:
    pieces = tokens.split(text)
    assert "".join(pieces) == text
    assert len(pieces) == tokens.output_tokens(text)
    assert tokens.truncate(text, limit) == "".join(pieces[:limit])


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens", "cost"),
    [(0, 0, 0), (1, 0, 1), (84, 121, 43), (1_000_000, 0, 75_000), (0, 1_000_000, 300_000), (1_000_001, 0, 75_001)],
)
def test_an_answer_costs_whole_micro_dollars_rounded_up(input_tokens: int, output_tokens: int, cost: int) -> None:
    assert EMULATOR.cost(input_tokens, output_tokens) == cost


def test_a_synchronous_answer_costs_twice_as_much() -> None:
    assert EMULATOR.doubled().cost(1_000_000, 1_000_000) == 2 * EMULATOR.cost(1_000_000, 1_000_000)


def chatty(query: PersonaQuery) -> PersonaReply:
    return PersonaReply("one two three four five", top_logprobs=[("one", -0.1), ("uno", -2.5), ("un", -4.0)])


@pytest.mark.parametrize(
    ("limit", "words", "finish"), [(None, 5, "stop"), (5, 5, "stop"), (4, 4, "length"), (1, 1, "length")]
)
def test_an_answer_is_truncated_to_the_limit(limit: int | None, words: int, finish: str) -> None:
    chat = openai_wire.ChatRequest(model="m", messages=[openai_wire.Message("user", "q")], max_completion_tokens=limit)
    body, said = openai_wire.complete(chat, chatty, sample="0", seed=0, name="x", created=0)
    assert (len(said.split()), body.choices[0].finish_reason) == (words, finish)
    assert body.usage.completion_tokens == words
    if limit:
        params = anthropic_wire.MessageParams(
            model="m", messages=[anthropic_wire.Message("user", "q")], max_tokens=limit
        )
        message, said = anthropic_wire.reply_to(params, chatty, sample="0", seed=0, name="x", tier="batch")
        assert (len(said.split()), message.stop_reason) == (words, {"stop": "end_turn", "length": "max_tokens"}[finish])


def test_only_the_first_word_has_alternatives() -> None:
    chat = openai_wire.ChatRequest(
        model="m", messages=[openai_wire.Message("user", "q")], logprobs=True, top_logprobs=2
    )
    body, _ = openai_wire.complete(chat, chatty, sample="0", seed=0, name="x", created=0)
    logprobs = body.choices[0].logprobs
    assert logprobs
    first, second = logprobs.content[:2]
    assert (first.token, first.logprob) == ("one", -0.1)
    assert [(other.token, other.logprob) for other in first.top_logprobs] == [("one", -0.1), ("uno", -2.5)]
    assert (second.token, second.logprob) == (" two", 0.0)


@pytest.mark.parametrize(
    ("seed", "custom_id", "sample"),
    [(None, "nonce-17-3", "17-3"), (None, "other-17-3", "17-3"), (None, "plain", "0"), (5, "nonce-17-3", "5")],
)
def test_the_sample_never_contains_the_nonce(seed: int | None, custom_id: str, sample: str) -> None:
    queries: list[PersonaQuery] = []

    def record(query: PersonaQuery) -> PersonaReply:
        queries.append(query)
        return PersonaReply("ok")

    body: dict[str, object] = {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
    }
    if seed is not None:
        body["seed"] = seed
    line = json.dumps({"custom_id": custom_id, "method": "POST", "url": "u", "body": body}).encode()
    OpenAICodec("batch", 0.0, 3, lambda _model: record).answer(line)
    assert (queries[0].sample, queries[0].prompt, queries[0].seed) == (sample, "q", 3)


def test_echo_is_found_and_an_unknown_name_is_not() -> None:
    assert find_persona("echo", Path()) is echo
    assert find_persona("no such model", Path()) is None


@pytest.mark.parametrize("fault", sorted(REPLY_FAULTS))
def test_every_reply_fault_changes_the_reply(fault: str) -> None:
    unchanged = (PersonaReply("one two three four"), "stop")
    assert changed_reply(fault, unchanged[0]) != unchanged


@given(
    st.text(max_size=40),
    st.text(max_size=40, alphabet=st.characters(exclude_categories=["Cs"])),
    st.booleans(),
    st.none() | st.integers(1, 5),
    st.sampled_from(["user", "system"]),
    st.text(min_size=1, max_size=20, alphabet=st.characters(exclude_categories=["Cs"])),
)
def test_the_fast_answer_equals_the_full_answer(
    prompt: str, said: str, refusal: bool, limit: int | None, role: str, custom_id: str
) -> None:
    def model(query: PersonaQuery) -> PersonaReply:
        return PersonaReply(f"{said} {query.sample} {len(query.prompt)} 100% %b", refusal=refusal)

    body = {"model": "m %d", "messages": [{"role": role, "content": prompt}], "max_completion_tokens": limit}
    line = json.dumps({"custom_id": custom_id, "method": "POST", "url": "u", "body": body}).encode()
    fast = OpenAICodec("batch", 1.5, 3, lambda _model: model).answer(line)
    full = OpenAICodec("batch", 1.5, 3, lambda _model: model).answer(line, "no such fault")
    assert fast == full
