"""The Anthropic dialect works with the official `anthropic` package."""

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from batchbench.emulator.faults.catalogue import FAULTS
from tests.emulator.conftest import Emulate
from tests.emulator.driver import MESSAGE_BATCHES, Emulator, message_requests

OLD = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def client(emulator: Emulator) -> Iterator[anthropic.Anthropic]:
    with emulator.anthropic() as client:
        yield client


def finish(client: anthropic.Anthropic, batch: str) -> anthropic.types.messages.MessageBatch:
    while (found := client.messages.batches.retrieve(batch)).processing_status != "ended":
        time.sleep(0.005)
    return found


def test_a_batch_from_create_to_results(client: anthropic.Anthropic, emulator: Emulator) -> None:
    batch = client.messages.batches.create(requests=message_requests("sdk", 25))
    assert batch.type == "message_batch"
    assert batch.request_counts.processing == 25
    assert (batch.expires_at - batch.created_at).total_seconds() == 86_400
    assert batch.results_url is None or batch.processing_status == "ended"
    batch = finish(client, batch.id)
    assert batch.ended_at
    assert batch.results_url == f"{emulator.anthropic_url}/v1/messages/batches/{batch.id}/results"
    assert batch.request_counts.model_dump() == {
        "processing": 0,
        "succeeded": 25,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    lines = list(client.messages.batches.results(batch.id))
    assert {line.custom_id for line in lines} == {f"sdk-{k}-0" for k in range(25)}
    for line in lines:
        assert line.result.type == "succeeded"
        message = anthropic.types.Message.model_validate(line.result.message.to_dict(), strict=False)
        block = message.content[0]
        assert block.type == "text"
        prompt = f"Question {line.custom_id.split('-')[1]}"
        assert block.text == "A:" + hashlib.sha256(prompt.encode()).hexdigest()[:12]
        assert message.stop_reason == "end_turn"
        assert message.usage.service_tier == "batch"
        assert message.usage.output_tokens == 1


def test_parameters_are_checked_per_request_when_the_batch_runs(client: anthropic.Anthropic) -> None:
    requests = message_requests("checked", 7)
    requests[1]["params"]["temperature"] = 1.0
    del requests[2]["params"]["max_tokens"]
    requests[3]["params"]["model"] = "claude-none"
    requests[4]["params"]["logprobs"] = True
    requests[5]["params"]["max_tokens"] = 0
    requests[6]["params"]["stream"] = True
    batch = finish(client, client.messages.batches.create(requests=requests).id)
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 6)
    errors = {}
    for line in client.messages.batches.results(batch.id):
        if line.result.type == "errored":
            assert line.result.error.type == "error"
            errors[line.custom_id] = (line.result.error.error.type, line.result.error.error.message)
    assert errors["checked-1-0"] == ("invalid_request_error", "temperature: Extra inputs are not permitted")
    assert errors["checked-2-0"] == ("invalid_request_error", "max_tokens: Field required")
    assert errors["checked-3-0"] == ("not_found_error", "model: claude-none")
    assert errors["checked-4-0"] == ("invalid_request_error", "logprobs: Extra inputs are not permitted")
    assert errors["checked-5-0"][1] == "max_tokens: Input should be greater than or equal to 1"
    assert errors["checked-6-0"][0] == "invalid_request_error"


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_sampling_parameters_exist_in_the_old_version_only(client: anthropic.Anthropic, name: str) -> None:
    body: dict[str, Any] = {"model": "echo", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    old = client.messages.create(**body, extra_body={name: 1}, extra_headers=OLD)
    assert old.content
    with pytest.raises(anthropic.BadRequestError, match=f"{name}: Extra inputs are not permitted"):
        client.messages.create(**body, extra_body={name: 1})
    batch = client.messages.batches.create(requests=message_requests(f"old{name}", 2, **{name: 1}), extra_headers=OLD)
    assert finish(client, batch.id).request_counts.succeeded == 2, "the version of the create applies"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"custom_id": "x" * 65}, "requests.1.custom_id: String should have at most 64 characters"),
        ({"custom_id": "a b"}, "requests.1.custom_id: String should match pattern"),
        ({"custom_id": ""}, "requests.1.custom_id: String should have at least 1 character"),
        ({"custom_id": "bad-0-0"}, "requests.1.custom_id: 'bad-0-0' is used by more than one request"),
        ({"custom_id": None}, "requests.1"),
    ],
)
def test_the_structure_is_checked_by_the_create(
    client: anthropic.Anthropic, emulator: Emulator, change: dict[str, object], message: str
) -> None:
    requests = message_requests("bad", 2)
    requests[1] |= change
    with pytest.raises(anthropic.BadRequestError, match=message) as refused:
        client.messages.batches.create(requests=requests)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    accepted = [line for line in emulator.events("accepted") if line["dialect"] == "anthropic"]
    assert "bad" not in {line["nonce"] for line in accepted}


def test_bodies_that_are_not_a_batch_are_refused(emulator: Emulator) -> None:
    for body, message in (
        (b"{", "not valid JSON"),
        (b"{}", "requests: Field required"),
        (b'{"requests": []}', "at least 1 item"),
        (b'{"requests": [{"params": {}}]}', "requests.0.custom_id: Field required"),
        (b'{"requests": [{"custom_id": "a"}]}', "requests.0.params: Field required"),
    ):
        answer = emulator.call("POST", MESSAGE_BATCHES, body)
        assert answer.status == 400
        assert message in answer.json()["error"]["message"]


def test_a_pretty_printed_body_is_accepted(emulator: Emulator) -> None:
    body = json.dumps({"requests": message_requests("pretty", 3)}, indent=2).encode()
    batch = emulator.call("POST", MESSAGE_BATCHES, body).json()["id"]
    assert len(emulator.results(emulator.wait(batch))) == 3


def test_batches_are_listed_newest_first_in_both_directions(emulate: Emulate) -> None:
    emulator = emulate()
    made = [emulator.submit_messages(f"page{k}", 1) for k in range(7)]
    newest = made[::-1]
    with emulator.anthropic() as client:
        page = client.messages.batches.list(limit=3)
        assert page.has_more
        assert [batch.id for batch in page.data] == newest[:3]
        assert [batch.id for batch in page] == newest, "the package follows the cursors"
        older = client.messages.batches.list(limit=2, after_id=newest[4])
        assert [batch.id for batch in older.data] == newest[5:]
        assert not older.has_more
        newer = client.messages.batches.list(limit=2, before_id=newest[4])
        assert [batch.id for batch in newer.data] == newest[2:4]
        assert newer.has_more


def test_a_batch_shows_no_progress_and_cancelled_requests_are_not_billed(emulate: Emulate) -> None:
    emulator = emulate("--delay", "processing=1000", "--delay", "cancelling=600")
    batch = emulator.submit_messages("stop", 100)
    emulator.advance(300)
    with emulator.anthropic() as client:
        assert client.messages.batches.retrieve(batch).request_counts.processing == 100
        cancelled = client.messages.batches.cancel(batch)
        assert cancelled.processing_status == "canceling"
        assert cancelled.cancel_initiated_at
        with pytest.raises(anthropic.AnthropicError, match="No `results_url`"):
            client.messages.batches.results(batch)
        assert emulator.call("GET", f"{MESSAGE_BATCHES}/{batch}/results").status == 404
        emulator.advance(601)
        counts = finish(client, batch).request_counts
        assert counts.succeeded + counts.canceled == 100
        assert 28 <= counts.succeeded <= 32
        kinds = [line.result.type for line in client.messages.batches.results(batch)]
    assert kinds.count("canceled") == counts.canceled
    assert len(emulator.billed(batch)) == counts.succeeded


def test_an_expired_batch_bills_only_answered_requests(emulate: Emulate) -> None:
    emulator = emulate("--delay", "processing=200000")
    batch = emulator.submit_messages("slow", 100)
    emulator.advance(86_401)
    with emulator.anthropic() as client:
        counts = finish(client, batch).request_counts
        assert (counts.succeeded, counts.expired) == (43, 57)
        kinds = [line.result.type for line in client.messages.batches.results(batch)]
    assert (kinds.count("succeeded"), kinds.count("expired")) == (43, 57)
    assert len(emulator.billed(batch)) == 43


def test_only_an_ended_batch_can_be_deleted(emulate: Emulate) -> None:
    emulator = emulate("--delay", "processing=60")
    batch = emulator.submit_messages("gone", 2)
    with emulator.anthropic() as client:
        with pytest.raises(anthropic.BadRequestError):
            client.messages.batches.delete(batch)
        emulator.advance(61)
        finish(client, batch)
        with pytest.raises(anthropic.BadRequestError):
            client.messages.batches.cancel(batch)
        assert client.messages.batches.delete(batch).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            client.messages.batches.retrieve(batch)


def test_synchronous_calls_work(client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.create(
        model="echo", max_tokens=5, system="Be brief.", messages=[{"role": "user", "content": "he or she"}]
    )
    message = raw.parse()
    assert raw.headers["request-id"].startswith("req_")
    assert raw.headers["anthropic-ratelimit-requests-remaining"]
    assert raw.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
    assert message.usage.service_tier == "standard"
    counted = client.messages.count_tokens(
        model="echo", system="Be brief.", messages=[{"role": "user", "content": "he or she"}]
    )
    assert counted.input_tokens == message.usage.input_tokens
    assert "echo" in [model.id for model in client.models.list()]
    with pytest.raises(anthropic.NotFoundError, match="model: claude-none"):
        client.messages.create(model="claude-none", max_tokens=5, messages=[{"role": "user", "content": "x"}])


def test_models_say_what_they_can_do_and_when_they_retire(client: anthropic.Anthropic) -> None:
    opus = client.models.retrieve("claude-opus-5-5")
    assert (opus.lifecycle, opus.retires_at, opus.line, opus.max_tokens) == ("active", None, "opus", 128_000)
    assert opus.capabilities
    assert opus.capabilities.batch.supported
    assert opus.capabilities.thinking.supported
    types = opus.capabilities.thinking.types
    assert (types.adaptive.supported, types.disabled.supported, types.between_tools.supported) == (True, False, False)
    assert opus.capabilities.effort.max.supported
    sonnet = client.models.retrieve("claude-sonnet-5-5/random").capabilities
    assert sonnet
    assert sonnet.thinking.types.between_tools.supported
    haiku = client.models.retrieve("claude-haiku-4-5").capabilities
    assert haiku
    assert (haiku.effort.supported, haiku.thinking.types.enabled.supported) == (False, True)
    old = client.models.retrieve("claude-sonnet-4-5")
    assert old.lifecycle == "deprecated"
    assert old.retires_at
    assert old.retires_at.date().isoformat() == "2026-11-30"
    listed = {model.id: model for model in client.models.list()}
    assert {"claude-haiku-5-5", "random"} <= set(listed)
    assert listed["random"].capabilities
    assert not listed["random"].capabilities.thinking.supported
    for name in ("claude-none", "gpt-6.1-sol"):
        with pytest.raises(anthropic.NotFoundError, match=f"model: {name}"):
            client.models.retrieve(name)


def test_a_thinking_model_puts_its_thoughts_before_the_text(client: anthropic.Anthropic) -> None:
    def ask(limit: int, **more: Any) -> anthropic.types.Message:
        messages: Any = [{"role": "user", "content": "Why?"}]
        answer = client.messages.create(model="claude-opus-5-5/echo", max_tokens=limit, messages=messages, **more)
        assert isinstance(answer, anthropic.types.Message)
        return answer

    whole = ask(6000)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert whole.usage.output_tokens_details
    assert whole.usage.output_tokens_details.thinking_tokens == whole.usage.output_tokens - 1
    cut = ask(300)
    assert [block.type for block in cut.content] == ["thinking"]
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 300)
    assert ask(500, output_config={"effort": "low"}).content[-1].type == "text"
    with pytest.raises(anthropic.BadRequestError, match=r"thinking\.type\.disabled is not supported"):
        ask(300, thinking={"type": "disabled"})


def test_a_batch_of_a_thinking_model_has_answers_without_text(client: anthropic.Anthropic) -> None:
    requests = message_requests("thinks", 20, model="claude-haiku-5-5/echo", max_tokens=1500)
    batch = finish(client, client.messages.batches.create(requests=requests).id)
    kinds = []
    for line in client.messages.batches.results(batch.id):
        assert line.result.type == "succeeded"
        kinds.append([block.type for block in line.result.message.content])
    assert all(kind[0] == "thinking" for kind in kinds)
    assert ["thinking"] in kinds
    assert ["thinking", "text"] in kinds


def test_a_call_without_a_known_version_is_refused(emulator: Emulator) -> None:
    for version in ("", "2024-01-01"):
        answer = emulator.call("GET", MESSAGE_BATCHES, headers={"anthropic-version": version})
        assert answer.status == 400
        assert answer.json()["error"]["message"].startswith("anthropic-version")


def test_both_key_headers_are_accepted(emulator: Emulator) -> None:
    only_key = {"authorization": "", "x-api-key": emulator.token}
    assert emulator.call("GET", MESSAGE_BATCHES, headers=only_key).status == 200
    wrong_key = {"x-api-key": "wrong"}  # with a correct bearer token: x-api-key takes precedence
    assert emulator.call("GET", MESSAGE_BATCHES, headers=wrong_key).status == 401
    wrong_client = anthropic.Anthropic(base_url=emulator.anthropic_url, api_key="wrong", max_retries=0)
    with wrong_client, pytest.raises(anthropic.AuthenticationError) as denied:
        wrong_client.messages.batches.list()
    assert isinstance(denied.value.body, dict)
    assert denied.value.body["error"] == {"type": "authentication_error", "message": "invalid x-api-key"}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that injects the fault that the prompt names."""

    def key(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()[:12]

    rules = [
        {"do": name, "on": "messages", "key": key(name)}
        for name, fault in FAULTS.items()
        if fault.kind == "before" and fault.dialect != "openai" and "messages" in fault.calls
    ]
    emulator = Emulator(tmp_path_factory.mktemp("faulty"), rules=rules)
    yield emulator
    emulator.stop()


@pytest.mark.parametrize(
    ("fault", "error", "kind"),
    [
        ("400-not-json", anthropic.BadRequestError, "invalid_request_error"),
        ("400-usage-limits", anthropic.BadRequestError, "invalid_request_error"),
        ("401-revoked", anthropic.AuthenticationError, "authentication_error"),
        ("402-billing", anthropic.APIStatusError, "billing_error"),
        ("403-permission", anthropic.PermissionDeniedError, "permission_error"),
        ("404-foreign-key", anthropic.NotFoundError, "not_found_error"),
        ("409-before", anthropic.ConflictError, "conflict_error"),
        ("413-too-large", anthropic.APIStatusError, "request_too_large"),
        ("429-bare", anthropic.RateLimitError, "rate_limit_error"),
        ("429-spend-cap", anthropic.RateLimitError, "rate_limit_error"),
        ("500-before", anthropic.InternalServerError, "api_error"),
        ("502-before", anthropic.InternalServerError, None),
        ("504-before", anthropic.InternalServerError, "timeout_error"),
        ("529-before", anthropic.InternalServerError, "overloaded_error"),
        ("close-before", anthropic.APIConnectionError, None),
        ("reset-before", anthropic.APIConnectionError, None),
        ("hang-before", anthropic.APITimeoutError, None),
    ],
)
def test_every_error_class_of_the_package_is_raised(
    faulty: Emulator, fault: str, error: type[anthropic.APIError], kind: str | None
) -> None:
    with faulty.anthropic(timeout=0.5) as client, pytest.raises(error) as raised:
        client.messages.create(model="echo", max_tokens=5, messages=[{"role": "user", "content": fault}])
    if kind:
        assert isinstance(raised.value.body, dict)
        assert raised.value.body["error"]["type"] == kind
        assert raised.value.body["request_id"]
    if fault == "429-spend-cap":
        assert isinstance(raised.value, anthropic.APIStatusError)
        assert isinstance(raised.value.body, dict)
        assert raised.value.body["error"]["details"] == {"error_code": "enforced_spend_limit_reached"}
        assert "retry-after" not in raised.value.response.headers


def test_a_full_queue_gives_429_until_a_batch_ends(emulate: Emulate) -> None:
    emulator = emulate("--limit", "queue_requests=150", "--delay", "processing=60")
    emulator.submit_messages("one", 100)
    with emulator.anthropic() as client:
        with pytest.raises(anthropic.RateLimitError):
            client.messages.batches.create(requests=message_requests("two", 100))
        emulator.advance(61)
        emulator.wait(emulator.get(MESSAGE_BATCHES)["data"][0]["id"])
        client.messages.batches.create(requests=message_requests("two", 100))


def test_a_batch_that_is_too_large_is_refused(emulate: Emulate) -> None:
    emulator = emulate("--limit", "anthropic_requests=3", "--limit", "anthropic_bytes=2000")
    with emulator.anthropic() as client:
        with pytest.raises(anthropic.BadRequestError, match="at most 3 items"):
            client.messages.batches.create(requests=message_requests("many", 4))
        with pytest.raises(anthropic.APIStatusError) as large:
            client.messages.batches.create(requests=message_requests("large", 1, system="x" * 3000))
        assert large.value.status_code == 413
