"""Every provider fulfils the same contract; its requests and result lines have the format of its API."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.errors import UsageError
from batchbench.providers import anthropic, load_provider, openai
from batchbench.providers.interface import Line
from batchbench.providers.target import Target

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


def choice(content: object = "Joy", finish: str = "stop", refusal: str | None = None) -> list[object]:
    return [{"message": {"content": content, "refusal": refusal}, "finish_reason": finish}]


@pytest.mark.parametrize(
    ("line", "outcome", "text"),
    [
        (openai_line(), "answered", "Joy"),
        (openai_line(choices=choice("")), "answered", ""),
        (
            openai_line(choices=choice([{"type": "text", "text": "Jo"}, {"type": "text", "text": "y"}])),
            "answered",
            "Joy",
        ),
        (openai_line(choices=choice(None, refusal="I cannot.")), "refused", "I cannot."),
        (openai_line(choices=choice("Jo", "length")), "truncated", "Jo"),
        (openai_line(choices=choice(None, "content_filter")), "filtered", None),
        (openai_line(choices=choice(None, "tool_calls")), "failed", None),
        (openai_line(choices=[]), "failed", None),
        (openai_line(choices=choice("one") + choice("two")), "answered", "one"),
    ],
)
def test_openai_answers_get_the_right_outcome(line: bytes, outcome: str, text: str | None) -> None:
    [found] = openai.decode(line)
    assert (found.id, found.outcome, found.text, found.again) == ("n-1-0", outcome, text, False)


@pytest.mark.parametrize(
    ("response", "error", "again"),
    [
        (None, {"code": "batch_expired", "message": "too late"}, True),
        (None, {"code": "batch_cancelled", "message": "stopped"}, True),
        (None, {"code": "request_timeout", "message": "slow"}, True),
        (None, None, True),
        ({"status_code": 429, "body": {"error": {"message": "slow down"}}}, None, True),
        ({"status_code": 500, "body": {"error": {"message": "oops"}}}, None, True),
        ({"status_code": 0, "body": {}}, None, True),
        ({"status_code": 400, "body": {"error": {"message": "no", "code": "unsupported_parameter"}}}, None, False),
        ({"status_code": 404, "body": {"error": {"message": "no"}}}, None, False),
    ],
)
def test_openai_failures_are_asked_again_unless_the_request_is_wrong(
    response: object, error: object, again: bool
) -> None:
    [found] = openai.decode(json.dumps({"custom_id": "n-1-0", "response": response, "error": error}).encode())
    assert (found.outcome, found.again) == ("failed", again)


def test_openai_log_probabilities_are_those_of_the_first_token() -> None:
    tops = [{"token": "she", "logprob": -0.3, "bytes": []}, {"token": "he", "logprob": -1.4, "bytes": []}]
    choices = choice("she")
    choices[0]["logprobs"] = {"content": [{"token": "she", "logprob": -0.3, "top_logprobs": tops}]}  # type: ignore[index]
    assert openai.decode(openai_line(choices=choices))[0].logprobs == [("she", -0.3), ("he", -1.4)]


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": -5, "completion_tokens": 1}])
def test_a_missing_or_negative_usage_is_unknown(usage: object) -> None:
    assert not openai.decode(openai_line(usage=usage))[0].usage


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
        ({"type": "succeeded", "message": message(stop_reason="tool_use")}, "failed", None, False),
        ({"type": "expired"}, "failed", None, True),
        ({"type": "canceled"}, "failed", None, True),
        (errored("api_error"), "failed", None, True),
        (errored("overloaded_error"), "failed", None, True),
        (errored("invalid_request_error", "temperature: Extra inputs"), "failed", None, False),
        (errored("invalid_request_error", "Your credit balance is too low"), "failed", None, True),
    ],
)
def test_anthropic_results_get_the_right_outcome(result: object, outcome: str, text: str | None, again: bool) -> None:
    [found] = anthropic.decode(json.dumps({"custom_id": "n-1-0", "result": result}).encode())
    assert (found.id, found.outcome, found.text, found.again) == ("n-1-0", outcome, text, again)


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
        ("gpt-5.6-mini", {}, {"max_completion_tokens": 300, "reasoning_effort": "none"}),
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
