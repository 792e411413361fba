"""Every provider fulfils the same contract; its requests and result lines have the format of its API."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.errors import UsageError
from batchbench.providers import (
    anthropic,
    anthropic_results,
    anthropic_wire,
    load_provider,
    openai,
    openai_results,
    openai_wire,
)
from batchbench.providers.interface import Line, ModelInfo
from batchbench.providers.target import Target

JOY = {"type": "text", "text": "Joy"}
NAMES = ["openai", "anthropic", "chat"]


def target(provider: str, **options: object) -> Target:
    return Target(provider=provider, model="m", max_tokens=300, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
class TestEveryProvider:
    @given(st.text(), st.text())
    def test_a_request_contains_its_id_and_prompt_unchanged(self, name: str, prompt: str, system: str) -> None:
        request = load_provider(name).encoder(target(name, system=system))("abc123-42-0", prompt)
        decoded = json.loads(request)
        body = decoded.get("body") or decoded["params"]
        assert decoded["custom_id"] == "abc123-42-0"
        assert body["messages"][-1] == {"role": "user", "content": prompt}
        assert request.count(b"\n") == request.endswith(b"\n")
        assert system in (body.get("system"), body["messages"][0]["content"])

    def test_parameters_that_are_not_set_are_not_sent(self, name: str) -> None:
        request = json.loads(load_provider(name).encoder(target(name))("x-0-0", "hello"))
        body = request.get("body") or request["params"]
        assert set(body) <= {"model", "messages", "max_tokens", "max_completion_tokens"}

    @given(st.binary(max_size=300))
    def test_a_line_of_any_bytes_is_decoded_or_refused(self, name: str, line: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            assert all(isinstance(found, Line) for found in load_provider(name).decode(line))

    def test_its_limits_allow_at_most_a_shard(self, name: str) -> None:
        limits = load_provider(name).limits
        assert limits.requests <= 50_000
        assert limits.bytes < 256_000_000


def openai_line(**body: object) -> bytes:
    message = {"role": "assistant", "content": "Joy", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    completion = {"model": "m-1", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}} | body
    response = {"status_code": 200, "request_id": "r", "body": completion}
    return json.dumps({"id": "b", "custom_id": "n-1-0", "response": response, "error": None}).encode()


def refusal(status: int, text: str, **fields: object) -> dict[str, object]:
    return {"status_code": status, "body": {"error": {"message": text, **fields}}}


def choice(content: object = "Joy", finish: str = "stop", refusal: str | None = None) -> list[object]:
    return [{"message": {"content": content, "refusal": refusal}, "finish_reason": finish}]


@pytest.mark.parametrize(
    ("line", "outcome", "text"),
    [
        (openai_line(), "answered", "Joy"),
        (openai_line(choices=choice("")), "empty", ""),
        (openai_line(choices=choice(" \n")), "empty", " \n"),
        (openai_line(choices=choice(None)), "empty", None),
        (openai_line(choices=choice("", "length")), "empty", ""),
        (
            openai_line(choices=choice([{"type": "text", "text": "Jo"}, {"type": "text", "text": "y"}])),
            "answered",
            "Joy",
        ),
        (openai_line(choices=choice(None, refusal="I cannot.")), "refused", "I cannot."),
        (openai_line(choices=choice("Jo", "length")), "truncated", "Jo"),
        (openai_line(choices=choice(None, "content_filter")), "filtered", None),
        (openai_line(choices=choice(None, "tool_calls")), "empty", None),
        (openai_line(choices=choice("Joy", "eos")), "answered", "Joy"),
        (
            openai_line(choices=choice([{"type": "text", "text": None}, {"type": "text", "text": "Joy"}])),
            "answered",
            "Joy",
        ),
        (openai_line(choices=choice([{"type": "refusal", "refusal": "No."}])), "refused", "No."),
        (openai_line(choices=choice(["Jo", "y"])), "answered", "Joy"),
        (openai_line(choices=choice([{"type": "output_text", "text": "Joy"}])), "answered", "Joy"),
        (openai_line(choices=choice([{"type": "thinking", "thinking": "hm"}])), "empty", None),
        (openai_line(choices=[]), "empty", None),
        (openai_line(choices=None), "empty", None),
        (openai_line(choices=choice("one") + choice("two")), "answered", "one"),
    ],
)
def test_openai_answers_get_the_right_outcome(line: bytes, outcome: str, text: str | None) -> None:
    [found] = openai.decode(line)
    assert (found.id, found.outcome, found.text, found.again) == ("n-1-0", outcome, text, False)


@pytest.mark.parametrize(
    ("response", "error", "cause"),
    [
        (None, {"code": "batch_expired", "message": "too late"}, "moment"),
        (None, {"code": "batch_cancelled", "message": "stopped"}, "moment"),
        (None, {"code": "request_timeout", "message": "slow"}, "moment"),
        (None, None, "moment"),
        (refusal(429, "slow down"), None, "moment"),
        (refusal(500, "oops"), None, "moment"),
        ({"status_code": 0, "body": {}}, None, "moment"),
        ({"status_code": "503", "body": {"error": "busy"}}, None, "moment"),
        (refusal(200, "overloaded", code=503), None, "moment"),
        (refusal(200, "rate limit", code=429), None, "moment"),
        ({"status_code": 200, "body": {"error": {"code": 502}, "choices": []}}, None, "moment"),
        ({"status_code": 200, "body": {"error": {"code": 502}, "choices": None}}, None, "moment"),
        (refusal(400, "no", code="unsupported_parameter"), None, "settings"),
        (refusal(400, "Unsupported value: 'reasoning_effort'"), None, "settings"),
        (refusal(200, "no such model", code=404), None, "settings"),
        (refusal(404, "no"), None, "settings"),
        (refusal(401, "Incorrect API key provided"), None, "settings"),
        (refusal(403, "Your organization must be verified"), None, "settings"),
        (refusal(429, "You exceeded your quota", type="insufficient_quota"), None, "settings"),
        (
            {"status_code": 404, "body": None},
            {"error": {"message": "The model `x` does not exist.", "code": 404}},
            "settings",
        ),
        (refusal(400, "maximum context length is 4096 tokens", code="context_length_exceeded"), None, "prompt"),
        (refusal(400, "max_tokens is not supported: the context window is too small"), None, "prompt"),
        (refusal(400, "unsupported characters", code="invalid_value", param="messages[0].content"), None, "prompt"),
        (refusal(400, "Unsupported value", code="unsupported_value", param="messages[0].role"), None, "settings"),
        (refusal(400, "Unsupported value", code="invalid_value", param="temperature"), None, "settings"),
        (refusal(400, "blocked", code="content_filter"), None, "content"),
        (refusal(403, "Your input was flagged"), None, "content"),
        (refusal(403, "no", metadata={"reasons": ["violence"]}), None, "content"),
        (refusal(200, "no", code=403, metadata={"reasons": ["violence"]}), None, "content"),
    ],
)
def test_openai_failures_are_about_the_moment_the_settings_the_content_or_the_prompt(
    response: object, error: object, cause: str
) -> None:
    [found] = openai.decode(json.dumps({"custom_id": "n-1-0", "response": response, "error": error}).encode())
    expected = {"moment": (True, False), "settings": (True, True), "content": (False, False), "prompt": (False, False)}
    assert (found.again, found.held) == expected[cause]
    assert found.outcome == ("filtered" if cause == "content" else "failed")
    assert found.error


GOOD: dict[str, Any] = json.loads(openai_line())["response"]["body"]


@pytest.mark.parametrize(
    "response",
    [
        json.dumps({"status_code": 200, "body": GOOD}),
        [{"status_code": 200, "body": GOOD}],
        GOOD,
        {},
        {"status_code": None, "body": None},
        {"status_code": None, "body": json.dumps(GOOD)},
        {"status_code": None, "body": [GOOD]},
        {"status_code": None, "body": {"output": [{"text": "Joy"}]}},
        {"status_code": "OK", "body": json.dumps(GOOD)},
        {"status_code": 0, "body": json.dumps(GOOD)},
        {"status_code": 7, "body": json.dumps(GOOD)},
        {"status_code": 200, "body": {**GOOD, "choices": ["Joy"]}},
        {"status_code": 200, "body": {**GOOD, "choices": [{"text": "Joy", "finish_reason": "stop"}]}},
        {"status_code": 200, "body": {**GOOD, "choices": choice(5)}},
        {"status_code": 200, "body": {**GOOD, "choices": choice({"text": "Joy"})}},
        {"status_code": 200, "body": {**GOOD, "choices": choice([JOY, 5])}},
        {"status_code": 200, "body": {**GOOD, "choices": choice([JOY, {"type": "text"}])}},
        {"status_code": 200, "body": {**GOOD, "choices": choice([JOY, {"text": " no"}])}},
        {"status_code": 200, "body": {**GOOD, "choices": choice([JOY, {"type": "text", "text": [" no"]}])}},
    ],
)
def test_an_answer_of_an_unknown_shape_is_neither_free_nor_empty(response: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        openai.decode(json.dumps({"custom_id": "n-1-0", "response": response, "error": None}).encode())


@pytest.mark.parametrize(
    "content",
    [5, {"text": "Joy"}, ["Joy"], [JOY, {"type": "text", "text": ["no"]}], [JOY, {"type": "text"}], [{}, JOY]],
)
def test_a_message_of_an_unknown_shape_is_not_read_in_part(content: object) -> None:
    result = {"type": "succeeded", "message": message(content=content)}
    with pytest.raises(msgspec.ValidationError):
        anthropic.decode(json.dumps({"custom_id": "n-1-0", "result": result}).encode())


def test_an_error_inside_a_success_may_have_been_charged() -> None:
    response = refusal(200, "overloaded", code=503)
    assert not openai.decode(json.dumps({"custom_id": "n-1-0", "response": response}).encode())[0].usage
    broken = {"finish_reason": "error", "message": {"content": "Jo"}, "error": {"message": "gone"}}
    [ended] = openai.decode(openai_line(choices=[broken]))
    assert (ended.outcome, ended.again, ended.held, ended.usage, ended.text) == ("failed", True, False, False, None)
    assert ended.error == "error: gone"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "Model unloaded."}, "Model unloaded."),
        ({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}, "too long"),
        ({"error": {"error": {"message": "nested"}}}, "nested"),
        ({"error": {"message": None, "code": {}}}, ""),
        ({"detail": "Not Found"}, '{"detail":"Not Found"}'),
    ],
)
def test_errors_of_other_servers_can_be_read(body: object, message: str) -> None:
    assert openai.problem(400, json.dumps(body).encode()).message == message


def test_one_flagged_prompt_does_not_stop_a_run() -> None:
    flagged = openai.problem(403, json.dumps(refusal(403, "Your input was flagged")["body"]).encode())
    assert openai.verdict(flagged) == "refused"
    assert openai.verdict(openai.problem(403, b'{"error":{"message":"no access"}}')) == "fatal"


@pytest.mark.parametrize(
    ("fields", "details", "error", "reasoning"),
    [
        ({}, {"reasoning_tokens": 300}, "no text: 300 of 300 output tokens were used for reasoning", 300),
        ({"reasoning_content": "hm"}, {}, "no text, only reasoning: 300 output tokens were used", 0),
        ({"reasoning": "hm"}, None, "no text, only reasoning: 300 output tokens were used", 0),
        ({}, {"reasoning_tokens": None}, "no text in the reply (finish reason: length)", 0),
    ],
)
def test_an_empty_answer_says_what_its_tokens_were_used_for(
    fields: dict[str, object], details: object, error: str, reasoning: int
) -> None:
    choices = [{"message": {"content": None, **fields}, "finish_reason": "length"}]
    counts = {"prompt_tokens": 9, "completion_tokens": 300, "completion_tokens_details": details}
    [found] = openai.decode(openai_line(choices=choices, usage=counts))
    assert (found.outcome, found.error, found.reasoning_tokens) == ("empty", error, reasoning)
    assert (found.output_tokens, found.usage) == (300, True)


def test_a_first_token_without_text_is_an_answer_if_it_has_log_probabilities() -> None:
    choices = choice("\n", "length")
    tops = [{"token": "she", "logprob": -0.3}]
    choices[0]["logprobs"] = {"content": [{"top_logprobs": tops}]}  # type: ignore[index]
    assert openai.decode(openai_line(choices=choices))[0].outcome == "truncated"


def test_openai_log_probabilities_are_those_of_the_first_token() -> None:
    tops = [{"token": "she", "logprob": -0.3, "bytes": []}, {"token": "he", "logprob": -1.4, "bytes": []}]
    choices = choice("she")
    choices[0]["logprobs"] = {"content": [{"token": "she", "logprob": -0.3, "top_logprobs": tops}]}  # type: ignore[index]
    assert openai.decode(openai_line(choices=choices))[0].logprobs == [("she", -0.3), ("he", -1.4)]


@pytest.mark.parametrize(
    "usage",
    [
        None,
        7,
        {},
        {"prompt_tokens": -5, "completion_tokens": 1},
        {"prompt_tokens": None, "completion_tokens": 1},
        {"prompt_tokens": 5, "completion_tokens": "many"},
    ],
)
def test_a_usage_that_cannot_be_read_is_unknown_and_the_answer_is_kept(usage: object) -> None:
    [found] = openai.decode(openai_line(usage=usage))
    assert (found.outcome, found.text, found.usage) == ("answered", "Joy", False)
    spent = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    named = {spent[key]: value for key, value in usage.items()} if isinstance(usage, dict) else usage
    result = {"type": "succeeded", "message": message(content=TEXT, usage=named)}
    [found] = anthropic.decode(json.dumps({"custom_id": "n-1-0", "result": result}).encode())
    assert (found.outcome, found.text, found.usage) == ("answered", "(c)", False)


def test_half_an_emoji_does_not_lose_the_reply_to_a_single_call() -> None:
    half = [{"type": "text", "text": "Joy \ud83d"}]
    reply = json.dumps({**GOOD, "choices": choice("Joy \ud83d")}).encode()
    other = json.dumps(message(content=half)).encode()
    for found in (openai_results.decode_reply(reply), anthropic_results.decode_reply(other)):
        assert (found.outcome, found.text, found.usage) == ("answered", "Joy \ufffd", True)
    for decode_reply in (openai_results.decode_reply, anthropic_results.decode_reply):
        for damaged_reply in (b"", b"[]", b"<html>", b"\xff", b'{"choices":'):
            with pytest.raises(msgspec.DecodeError):
                decode_reply(damaged_reply)


def message(**fields: object) -> dict[str, object]:
    usage = {"input_tokens": 9, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 2, "output_tokens": 3}
    return {"type": "message", "model": "m", "content": [], "stop_reason": "end_turn", "usage": usage} | fields


def errored(kind: str, text: str = "") -> dict[str, object]:
    return {"type": "errored", "error": {"type": "error", "error": {"type": kind, "message": text}, "request_id": None}}


TEXT = [{"type": "text", "text": "(c)"}]


@pytest.mark.parametrize(
    ("result", "outcome", "text", "again"),
    [
        ({"type": "succeeded", "message": message(content=TEXT)}, "answered", "(c)", False),
        (
            {"type": "succeeded", "message": message(content=[{"type": "thinking", "thinking": "hm"}, *TEXT])},
            "answered",
            "(c)",
            False,
        ),
        ({"type": "succeeded", "message": message(content=TEXT, stop_reason="max_tokens")}, "truncated", "(c)", False),
        ({"type": "succeeded", "message": message(stop_reason="refusal")}, "refused", None, False),
        ({"type": "succeeded", "message": message(stop_reason="tool_use")}, "empty", None, False),
        ({"type": "succeeded", "message": message(content=None)}, "empty", None, False),
        ({"type": "succeeded", "message": message(content=[{"type": "text", "text": None}])}, "empty", None, False),
        ({"type": "succeeded", "message": message(content=[{"type": "text", "text": " "}])}, "empty", " ", False),
        ({"type": "succeeded", "message": message(content=TEXT, stop_reason="tired")}, "answered", "(c)", False),
        (
            {"type": "succeeded", "message": message(content=[{"type": "redacted_thinking", "data": "x"}, *TEXT])},
            "answered",
            "(c)",
            False,
        ),
        ({"type": "expired"}, "failed", None, True),
        ({"type": "canceled"}, "failed", None, True),
        (errored("api_error"), "failed", None, True),
        (errored("overloaded_error"), "failed", None, True),
        (errored("invalid_request_error", "messages.0.content: too long"), "failed", None, False),
        (errored("invalid_request_error", "prompt is too long: 3 tokens > 2 maximum"), "failed", None, False),
        (errored("invalid_request_error", "Output blocked by content filtering policy"), "filtered", None, False),
    ],
)
def test_anthropic_results_get_the_right_outcome(result: object, outcome: str, text: str | None, again: bool) -> None:
    [found] = anthropic.decode(json.dumps({"custom_id": "n-1-0", "result": result}).encode())
    assert (found.id, found.outcome, found.text, found.again) == ("n-1-0", outcome, text, again)


@pytest.mark.parametrize(
    ("kind", "text", "held"),
    [
        ("invalid_request_error", "temperature: Extra inputs are not permitted", True),
        ("invalid_request_error", "thinking.type: `disabled` is not supported by this model", True),
        ("invalid_request_error", '"thinking.type.disabled" is not supported for this model', True),
        ("invalid_request_error", "output_config.effort: invalid value", True),
        ("invalid_request_error", "Your credit balance is too low", True),
        ("not_found_error", "model: claude-99", True),
        ("authentication_error", "invalid x-api-key", True),
        ("permission_error", "no", True),
        ("billing_error", "no", True),
        ("overloaded_error", "busy", False),
        ("timeout_error", "slow", False),
    ],
)
def test_anthropic_failures_are_about_the_settings_or_the_moment(kind: str, text: str, held: bool) -> None:
    [found] = anthropic.decode(json.dumps({"custom_id": "n-1-0", "result": errored(kind, text)}).encode())
    assert (found.outcome, found.again, found.held) == ("failed", True, held)


def test_an_empty_answer_of_anthropic_says_what_its_tokens_were_used_for() -> None:
    for details, error in (
        ({"thinking_tokens": 3}, "no text: 3 of 3 output tokens were used for reasoning"),
        (None, "no text, only reasoning: 3 output tokens were used"),
    ):
        usage = {"input_tokens": 9, "output_tokens": 3, "output_tokens_details": details}
        thought = message(content=[{"type": "thinking", "thinking": ""}], stop_reason="max_tokens", usage=usage)
        line = json.dumps({"custom_id": "x", "result": {"type": "succeeded", "message": thought}}).encode()
        [found] = anthropic.decode(line)
        assert (found.outcome, found.error, found.output_tokens) == ("empty", error, 3)


def test_anthropic_input_tokens_are_the_sum_of_three_counts() -> None:
    [found] = anthropic.decode(
        json.dumps({"custom_id": "x", "result": {"type": "succeeded", "message": message(content=TEXT)}}).encode()
    )
    assert (found.input_tokens, found.output_tokens) == (12, 3)


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("gpt-4.1-mini", {"temperature": 0.5}, {"max_completion_tokens": 300, "temperature": 0.5}),
        ("gpt-5.1", {}, {"max_completion_tokens": 300}),
        (
            "gpt-5.6-mini",
            {"thinking_fields": '{"reasoning_effort":"none"}'},
            {"max_completion_tokens": 300, "reasoning_effort": "none"},
        ),
        ("gpt-4o", {"top_logprobs": 20}, {"max_completion_tokens": 300, "logprobs": True, "top_logprobs": 20}),
    ],
)
def test_openai_bodies_suit_the_model(model: str, options: dict[str, object], expected: dict[str, object]) -> None:
    asked = Target(provider="openai", model=model, max_tokens=300, **options)  # type: ignore[arg-type]
    assert openai.body(asked) == {"model": model, **expected}


@pytest.mark.parametrize(
    ("provider", "model", "options"),
    [
        ("openai", "gpt-5-mini", {"temperature": 0.5}),
        ("openai", "o3", {"top_logprobs": 5}),
        ("anthropic", "claude-haiku-4-5", {"top_logprobs": 5}),
        ("anthropic", "claude-opus-5", {"temperature": 0.5}),
    ],
)
def test_parameters_that_a_model_refuses_are_refused_before_a_call(
    provider: str, model: str, options: dict[str, object]
) -> None:
    asked = Target(provider=provider, model=model, max_tokens=300, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        load_provider(provider).check(asked)


@pytest.mark.parametrize(
    ("errors", "refused"),
    [
        (
            [("invalid_json_line", 2), ("invalid_json_line", 5)],
            {2: "invalid_json_line: no", 5: "invalid_json_line: no"},
        ),
        ([("invalid_json_line", 2), ("too_many_tasks", None)], {}),  # one error concerns the whole file
        ([("model_not_found", 1)], {}),  # names the first line and concerns all of them
        ([("token_limit_exceeded", None)], {}),
    ],
)
def test_openai_refuses_single_lines_only_for_their_own_errors(
    errors: list[tuple[str, int | None]], refused: dict[int, str]
) -> None:
    data = [{"code": code, "message": "no", "line": line} for code, line in errors]
    batch = {"id": "batch_1", "status": "failed", "created_at": 0, "errors": {"data": data}}
    remote = openai.read(json.dumps(batch).encode())
    assert (remote.state, remote.refused) == ("rejected", refused)
    assert remote.parts == ([("refusal", "/batches/batch_1")] if refused else [])


def damaged(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """A JSON document, once with each of its fields null, absent, and of another type."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            for where, changed in damaged(item, (*path, str(number))):
                yield where, [*value[:number], changed, *value[number + 1 :]]
    if isinstance(value, dict):
        for key, item in value.items():
            where = ".".join((*path, key))
            yield f"{where} null", {**value, key: None}
            yield f"{where} absent", {name: other for name, other in value.items() if name != key}
            yield f"{where} odd", {**value, key: [[]] if not isinstance(item, list) else {"odd": 1}}
            for place, changed in damaged(item, (*path, key)):
                yield place, {**value, key: changed}


def whole_openai_line() -> dict[str, Any]:
    """A result line with every field that is read."""
    line: dict[str, Any] = json.loads(openai_line())
    body = line["response"]["body"]
    body["choices"][0]["logprobs"] = {"content": [{"token": "J", "top_logprobs": [{"token": "J", "logprob": -0.1}]}]}
    body["choices"][0]["message"] |= {"content": [JOY], "reasoning_content": "hm", "reasoning": "hm"}
    body["usage"]["completion_tokens_details"] = {"reasoning_tokens": 1}
    return line


def whole_anthropic_line() -> dict[str, Any]:
    """A result line with every field that is read."""
    usage = message()["usage"]
    assert isinstance(usage, dict)
    usage["output_tokens_details"] = {"thinking_tokens": 1}
    text = [{"type": "text", "text": "Joy"}]
    return {"custom_id": "n-1-0", "result": {"type": "succeeded", "message": message(content=text, usage=usage)}}


CHOICE, CONTENT = "response.body.choices.0", "response.body.choices.0.message.content"
TO_THE_TEXT = {  # fields that lead to the id or to the text
    "openai": ["custom_id", "response", "response.body", "response.body.choices", f"{CHOICE}.message", CONTENT]
    + [f"{CONTENT}.0.{name}" for name in ("type", "text")],
    "anthropic": ["custom_id", "result", "result.type", "result.message", "result.message.content"]
    + [f"result.message.content.0.{name}" for name in ("type", "text")],
}


@pytest.mark.parametrize(
    ("name", "where", "line"),
    [("openai", *case) for case in damaged(whole_openai_line())]
    + [("anthropic", *case) for case in damaged(whole_anthropic_line())],
)
def test_no_field_beside_the_text_can_lose_a_paid_answer(name: str, where: str, line: object) -> None:
    """Fields that lead to the text may lose it; then the line has an id and a reason, or is refused as a whole."""
    field = where.rpartition(" ")[0]
    try:
        [found] = load_provider(name).decode(json.dumps(line).encode())
    except msgspec.ValidationError:
        assert field in TO_THE_TEXT[name], where
        return
    assert found.id == "n-1-0"
    if field in TO_THE_TEXT[name]:
        assert found.text == "Joy" or found.error or found.logprobs, where
    else:
        assert (found.outcome, found.text) == ("answered", "Joy"), where


def test_the_usual_formats_are_decoded_without_the_slow_path() -> None:
    """The damaged lines above are made of lines that have every field of the wire formats."""
    assert openai_wire.decode_answered(json.dumps(whole_openai_line()))
    assert anthropic_wire.decode_entries(json.dumps(whole_anthropic_line()))
    read = {name for where, _ in damaged(whole_openai_line()) for name in where.rpartition(" ")[0].split(".")}
    known = [openai_wire.Completion, openai_wire.Choice, openai_wire.Message, openai_wire.Usage, openai_wire.Details]
    fields = {field for kind in known for field in kind.__struct_fields__}
    assert fields - read <= {"error"}  # an answered choice has no error
    read = {name for where, _ in damaged(whole_anthropic_line()) for name in where.rpartition(" ")[0].split(".")}
    assert {*anthropic_wire.Message.__struct_fields__, *anthropic_wire.Usage.__struct_fields__} <= read


OPENAI_BATCH = {
    "id": "batch_1",
    "status": "completed",
    "created_at": 5,
    "expires_at": 6,
    "input_file_id": "file-1",
    "output_file_id": "file-2",
    "error_file_id": "file-3",
    "errors": {"data": [{"code": "x", "message": "no", "line": 1}]},
    "request_counts": {"total": 3, "completed": 2, "failed": 1},
    "metadata": {"batchbench": "abc"},
}
ANTHROPIC_BATCH = {
    "id": "msgbatch_1",
    "processing_status": "ended",
    "created_at": "2026-01-01T00:00:00Z",
    "expires_at": "2026-01-02T00:00:00Z",
    "request_counts": {"processing": 0, "succeeded": 3, "errored": 0, "canceled": 0, "expired": 0},
    "results_url": "https://api.anthropic.com/v1/messages/batches/msgbatch_1/results",
}


@pytest.mark.parametrize(
    ("name", "where", "batch"),
    [("openai", *case) for case in damaged(OPENAI_BATCH) if not case[0].endswith("odd")]
    + [("anthropic", *case) for case in damaged(ANTHROPIC_BATCH) if not case[0].endswith("odd")],
)
def test_a_batch_can_be_read_without_its_optional_fields(name: str, where: str, batch: object) -> None:
    required = ("id", "status", "processing_status", "created_at")
    content = json.dumps(batch).encode()
    if where.rpartition(" ")[0] in required:
        with pytest.raises(msgspec.DecodeError):
            load_provider(name).read(content)
    else:
        assert load_provider(name).read(content).state == "ended"


class Shelf:
    """A provider that answers from a table, and remembers what it was asked."""

    def __init__(self, replies: list[object], base_url: str = "https://api.anthropic.com") -> None:
        self.base_url = base_url
        self.asked: list[tuple[str, object]] = []
        self._replies = [json.dumps(reply).encode() for reply in replies]

    async def get(self, path: str, query: object = None) -> bytes:
        self.asked.append((path, query))
        return self._replies.pop(0)


def page(times: list[int], *, more: bool | None) -> dict[str, object]:
    data = [{"id": f"batch_{time}", "status": "completed", "created_at": time} for time in times]
    return {"data": data, "has_more": more}


@pytest.mark.parametrize(
    ("pages", "found", "calls"),
    [
        ([page([9, 8], more=True), page([3, 2], more=True)], [9, 8], 2),  # newest first: older pages are not read
        ([page([1, 2], more=True), page([3, 9], more=False)], [9], 2),  # oldest first: the last page has the newest
        ([page([2], more=True), page([9], more=False)], [9], 2),  # one batch shows no order
        ([page([2, 1, 3], more=True), page([9], more=False)], [9], 2),  # no order at all
        ([page([9, 8], more=None)], [9, 8], 1),
        ([page([*range(200, 100, -1)], more=None), page([100, 4], more=None)], [*range(200, 99, -1)], 2),
    ],
)
def test_a_listing_is_read_to_its_end_unless_it_is_in_descending_order(
    pages: list[object], found: list[int], calls: int
) -> None:
    shelf: Any = Shelf(pages)
    batches = anyio.run(openai.PROVIDER.listing, shelf, 5.0)
    assert ([batch.created for batch in batches], len(shelf.asked)) == (found, calls)


OWN = "/v1/messages/batches/msgbatch_1/results"


@pytest.mark.parametrize(
    ("url", "base_url", "path"),
    [
        (f"https://api.anthropic.com{OWN}", "https://api.anthropic.com", OWN),
        ("https://api.anthropic.com/v2/results/7?part=1", "https://api.anthropic.com", "/v2/results/7?part=1"),
        ("https://api.anthropic.com:443/v2/results/7", "https://api.anthropic.com", "/v2/results/7"),
        ("https://proxy.example/claude/v2/r", "https://proxy.example/claude", "/v2/r"),
        ("https://proxy.example/v2/r", "https://proxy.example/claude", OWN),
        ("https://evil.example/v2/results/7", "https://api.anthropic.com", OWN),
        ("https://api.anthropic.com@evil.example/x", "https://api.anthropic.com", OWN),
        ("https://api.anthropic.com:8443/v2/results/7", "https://api.anthropic.com", OWN),
        ("http://api.anthropic.com/v2/results/7", "https://api.anthropic.com", OWN),
        ("https://[broken/x", "https://api.anthropic.com", OWN),
        ("/v2/results/7", "https://api.anthropic.com", OWN),
        (None, "https://api.anthropic.com", OWN),
    ],
)
def test_results_are_fetched_where_the_provider_says_if_that_is_the_same_server(
    url: str | None, base_url: str, path: str
) -> None:
    shelf: Any = Shelf([{**ANTHROPIC_BATCH, "results_url": url}], base_url)
    assert anyio.run(anthropic.PROVIDER.get, shelf, "msgbatch_1").parts == [("results", path)]


def test_a_model_is_described_as_far_as_the_provider_does() -> None:
    openai_info = openai.PROVIDER.describe
    anthropic_info = anthropic.PROVIDER.describe
    assert openai_info is not None
    assert anthropic_info is not None
    shelf: Any = Shelf(
        [{"id": "gpt-5", "shutdown_date": "2026-12-11"}, {"id": "gpt-5", "shutdown_date": None}, {"id": 7}]
    )
    asked = msgspec.structs.replace(target("openai"), model="gpt-5")
    assert anyio.run(openai_info, shelf, asked) == ModelInfo(id="gpt-5", retires="2026-12-11")
    assert anyio.run(openai_info, shelf, asked) == ModelInfo(id="gpt-5")
    assert anyio.run(openai_info, shelf, asked) == ModelInfo(id="gpt-5")
    assert shelf.asked[0][0] == "/models/gpt-5"
    yes, no = {"supported": True}, {"supported": False}
    types = {"adaptive": yes, "enabled": no, "disabled": yes}
    able = {"batch": yes, "thinking": {**yes, "types": types}, "effort": {**yes, "low": yes, "max": no, "xhigh": None}}
    whole = {"id": "c", "capabilities": able, "max_tokens": 64_000, "retires_at": "2027-01-14T00:00:00Z"}
    shelf = Shelf([whole, {**whole, "capabilities": None, "max_tokens": None, "retires_at": None}])
    asked = msgspec.structs.replace(target("anthropic"), model="c")
    assert anyio.run(anthropic_info, shelf, asked) == ModelInfo(
        id="c",
        retires="2027-01-14",
        batch=True,
        thinking=["adaptive", "disabled"],
        efforts=["low"],
        max_output_tokens=64_000,
    )
    assert anyio.run(anthropic_info, shelf, asked) == ModelInfo(id="c")
    assert shelf.asked[0][0] == "/v1/models/c"


def test_the_only_value_of_stream_is_false() -> None:
    body = openai.body(target("chat", extra='{"stream":false}'))
    assert body["stream"] is False
    with pytest.raises(UsageError, match="stream"):
        openai.body(target("chat", extra='{"stream":true}'))


@pytest.mark.parametrize("count", [20.0, "20"])
def test_token_counts_may_be_written_as_floats_or_strings(count: object) -> None:
    choices = [{"message": {"content": "Joy"}, "finish_reason": "stop"}]
    body = {"choices": choices, "usage": {"prompt_tokens": count, "completion_tokens": count}}
    reply = {"content": [JOY], "stop_reason": "end_turn", "usage": {"input_tokens": count, "output_tokens": count}}
    lines = [
        *openai.decode(json.dumps({"custom_id": "x", "response": {"status_code": 200, "body": body}}).encode()),
        *anthropic.decode(json.dumps({"custom_id": "x", "result": {"type": "succeeded", "message": reply}}).encode()),
    ]
    assert [(line.text, line.input_tokens, line.output_tokens, line.usage) for line in lines] == [
        ("Joy", 20, 20, True),
        ("Joy", 20, 20, True),
    ]


@pytest.mark.parametrize("name", ["openai", "chat"])
def test_an_error_in_a_list_is_read(name: str) -> None:
    """Google's servers put an error into a list."""
    error = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}
    found = load_provider(name).problem(400, json.dumps([{"error": error}]).encode())
    assert (found.message, found.in_format) == ("API key not valid.", True)


def test_a_text_that_ends_at_the_token_limit_is_cut_off_whatever_the_limit_is_called() -> None:
    choices = [{"message": {"content": "I think that"}, "finish_reason": "max_tokens"}]
    assert openai_results.decode_reply(json.dumps({"choices": choices}).encode()).outcome == "truncated"


def test_an_error_without_its_wrapper_is_read() -> None:
    error = {"type": "invalid_request_error", "message": "messages: text is too long"}
    (line,) = anthropic.decode(json.dumps({"custom_id": "x", "result": {"type": "errored", "error": error}}).encode())
    assert (line.outcome, line.again) == ("failed", False)
    assert line.error == "invalid_request_error: messages: text is too long"


def test_a_lack_of_credit_ends_a_run() -> None:
    message = "Your credit balance is too low to access the Anthropic API."
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    assert anthropic.verdict(anthropic.problem(400, json.dumps(error).encode())) == "fatal"


@pytest.mark.parametrize(("more", "known"), [(False, True), (None, True), (True, False)])
def test_null_is_an_empty_list_of_batches_unless_there_are_more(more: bool | None, known: bool) -> None:
    class Calls:
        base_url = ""

        async def get(self, *_: object) -> bytes:
            return json.dumps({"data": None, "has_more": more}).encode()

    async def listing() -> list[Any]:
        return await openai.listing(Calls(), 0.0)  # type: ignore[arg-type]

    if known:
        assert anyio.run(listing) == []
    else:
        with pytest.raises(msgspec.ValidationError):
            anyio.run(listing)


@pytest.mark.parametrize("created", ["nan", "inf", -1, None])
def test_a_batch_without_a_possible_date_is_refused(created: object) -> None:
    with pytest.raises(msgspec.ValidationError, match="b1"):
        openai.read(json.dumps({"id": "b1", "status": "completed", "created_at": created}).encode())
