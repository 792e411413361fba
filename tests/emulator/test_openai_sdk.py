"""The OpenAI dialect works with the official `openai` package."""

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from batchbench.emulator.faults.catalogue import FAULTS
from tests.emulator.conftest import Emulate
from tests.emulator.driver import Emulator, chat_body, chat_lines


@pytest.fixture(scope="module")
def client(emulator: Emulator) -> Iterator[openai.OpenAI]:
    with emulator.openai() as client:
        yield client


def submit(client: openai.OpenAI, lines: list[dict[str, object]], name: str = "n1-input.jsonl") -> openai.types.Batch:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=(name, content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"shard": "7"}
    )


def finish(client: openai.OpenAI, batch: openai.types.Batch) -> openai.types.Batch:
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.005)
        batch = client.batches.retrieve(batch.id)
    return batch


def test_a_batch_from_upload_to_download(client: openai.OpenAI) -> None:
    batch = submit(client, chat_lines("sdk", 25))
    assert batch.object == "batch"
    assert batch.metadata == {"shard": "7"}
    assert batch.expires_at == batch.created_at + 86_400
    batch = finish(client, batch)
    assert batch.status == "completed"
    assert batch.model == "echo"
    assert batch.request_counts
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (25, 25, 0)
    assert batch.in_progress_at
    assert batch.finalizing_at
    assert batch.completed_at
    assert batch.error_file_id is None
    assert batch.output_file_id
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.split("\n") if line]
    ids = [line["custom_id"] for line in lines]
    assert sorted(ids) == sorted(f"sdk-{k}-0" for k in range(25))
    assert ids != sorted(ids, key=lambda custom_id: int(custom_id.split("-")[1])), "results are shuffled"
    for line in lines:
        body = openai.types.chat.ChatCompletion.model_validate(line["response"]["body"], strict=True)
        prompt = f"Question {line['custom_id'].split('-')[1]}"
        digest = hashlib.sha256(prompt.encode()).hexdigest()[:12]
        assert body.choices[0].message.content == f"A:{digest}"
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
    assert batch.usage
    assert batch.usage.input_tokens == sum(line["response"]["body"]["usage"]["prompt_tokens"] for line in lines)
    assert batch.usage.output_tokens == 25


def test_refused_requests_are_in_the_error_file_without_a_line_error(client: openai.OpenAI) -> None:
    lines = chat_lines("partly", 4)
    lines[1]["body"] = chat_body("too hot", temperature=9)
    lines[2]["body"] = {"model": "echo"}
    lines[3]["body"] = chat_body("odd", colour="blue")
    batch = finish(client, submit(client, lines))
    assert batch.request_counts
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 3)
    assert batch.output_file_id
    assert batch.error_file_id
    errors = [json.loads(line) for line in client.files.content(batch.error_file_id).text.split("\n") if line]
    by_id = {line["custom_id"]: line for line in errors}
    assert all(line["error"] is None and line["response"]["status_code"] == 400 for line in errors)
    bodies = {custom_id: line["response"]["body"]["error"] for custom_id, line in by_id.items()}
    assert bodies["partly-1-0"]["param"] == "temperature"
    assert bodies["partly-2-0"]["code"] == "missing_required_parameter"
    assert bodies["partly-3-0"]["message"] == "Unrecognized request argument supplied: colour"
    assert all(set(body) == {"message", "type", "param", "code"} for body in bodies.values())


def test_a_batch_of_errors_only_has_no_output_file(client: openai.OpenAI) -> None:
    batch = finish(client, submit(client, chat_lines("allbad", 3, temperature=9)))
    assert batch.status == "completed"
    assert batch.output_file_id is None
    assert batch.error_file_id


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        ('{"custom_id": "a-0", oops\n', "invalid_json_line", 1),
        ("\n", "empty_file", None),
        (json.dumps({**chat_lines("a", 1)[0], "url": "/v1/embeddings"}) + "\n", "url_mismatch", 1),
        (json.dumps(chat_lines("a", 1)[0]) * 1 + "\n" + json.dumps(chat_lines("a", 1)[0]), "duplicate_custom_id", 2),
        (json.dumps(chat_lines("a", 1, model="gpt-none")[0]), "model_not_found", 1),
        ('{"method": "POST"}', "invalid_request", 1),
        ("\ufeff" + json.dumps(chat_lines("a", 1)[0]), "invalid_json_line", 1),
    ],
)
def test_a_bad_file_is_accepted_and_fails_in_validation(
    client: openai.OpenAI, content: str, code: str, line: int | None
) -> None:
    file = client.files.create(file=("bad-input.jsonl", content.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = finish(client, batch)
    assert batch.status == "failed"
    assert batch.failed_at
    assert batch.errors
    assert batch.errors.data
    assert batch.errors.data[0].code == code
    assert batch.errors.data[0].line == line
    assert batch.request_counts
    assert batch.request_counts.total == 0
    assert batch.output_file_id is batch.error_file_id is None


def test_batches_are_listed_newest_first_in_pages(emulate: Emulate) -> None:
    emulator = emulate()
    made = [emulator.submit(f"page{k}", 1) for k in range(7)]
    with emulator.openai() as client:
        page = client.batches.list(limit=3)
        assert page.has_more
        assert [batch.id for batch in page.data] == made[:-4:-1]
        assert [batch.id for batch in client.batches.list(limit=3)] == made[::-1], "the package follows the cursors"
        assert [batch.id for batch in client.batches.list(limit=2, after=made[2])] == [made[1], made[0]]


def test_files_are_listed_shown_and_deleted(emulate: Emulate) -> None:
    with emulate().openai() as client:
        files = [client.files.create(file=(f"f{k}-x.jsonl", b"{}\n"), purpose="batch") for k in range(5)]
        assert files[0].bytes == 3
        assert files[0].status == "processed"
        assert files[0].expires_at == files[0].created_at + 30 * 86_400
        assert [file.id for file in client.files.list(limit=2)] == [file.id for file in files[::-1]]
        assert [file.id for file in client.files.list(order="asc", limit=2)] == [file.id for file in files]
        assert client.files.retrieve(files[1].id) == files[1]
        assert client.files.content(files[1].id).content == b"{}\n"
        assert client.files.delete(files[1].id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(files[1].id)
        short = client.files.create(
            file=("s-x.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert short.expires_at == short.created_at + 3600


def test_a_cancelled_batch_keeps_its_answers(emulate: Emulate) -> None:
    emulator = emulate("--delay", "processing=1000", "--delay", "cancelling=600")
    batch = emulator.submit("stop", 100)
    emulator.wait(batch, "in_progress")
    emulator.advance(300)
    with emulator.openai() as client:
        seen = client.batches.retrieve(batch)
        assert seen.request_counts
        assert 28 <= seen.request_counts.completed <= 32, "the counts grow with time"
        cancelled = client.batches.cancel(batch)
        assert cancelled.status == "cancelling"
        assert cancelled.cancelling_at
        assert client.batches.cancel(batch).id == batch, "a second cancel succeeds"
        emulator.advance(601)
        emulator.wait(batch, "cancelled")
        seen = client.batches.retrieve(batch)
        assert seen.cancelled_at
        assert seen.output_file_id
        assert seen.error_file_id
        assert seen.request_counts
        assert seen.request_counts.failed == 0
        answered = client.files.content(seen.output_file_id).text.count("\n")
        rest = [json.loads(line) for line in client.files.content(seen.error_file_id).text.split("\n") if line]
    assert answered == seen.request_counts.completed
    assert answered + len(rest) == 100
    assert {line["error"]["code"] for line in rest} == {"batch_cancelled"}
    assert all(line["response"] is None for line in rest)
    assert len(emulator.billed(batch)) == answered


def test_a_finished_batch_cannot_be_cancelled(client: openai.OpenAI) -> None:
    batch = finish(client, submit(client, chat_lines("late", 1)))
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        client.batches.cancel(batch.id)


def test_a_synchronous_call_has_logprobs_usage_and_rate_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="echo", messages=[{"role": "user", "content": "he or she"}], logprobs=True, top_logprobs=5
    )
    answer = raw.parse()
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["x-ratelimit-remaining-requests"]
    assert raw.headers["x-ratelimit-reset-tokens"].endswith("ms")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs
    assert answer.choices[0].logprobs.content
    token = answer.choices[0].logprobs.content[0]
    assert token.token == answer.choices[0].message.content
    assert token.logprob == 0.0
    assert token.top_logprobs[0].token == token.token
    assert answer.usage
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3 + 4 + 3, 1)
    plain = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hi"}])
    assert plain.choices[0].logprobs is None


def test_an_answer_is_cut_at_the_token_limit(client: openai.OpenAI) -> None:
    several = client.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": "x"}], n=3, max_completion_tokens=1
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.usage
    assert several.usage.completion_tokens == 3


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert "echo" in [model.id for model in client.models.list()]
    assert client.models.retrieve("echo").id == "echo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-none")


def test_models_say_when_they_shut_down(client: openai.OpenAI) -> None:
    assert client.models.retrieve("gpt-5-mini").shutdown_date == "2026-12-11"
    assert client.models.retrieve("gpt-6.1-sol/stereotyping").shutdown_date is None
    listed = {model.id: model for model in client.models.list()}
    assert {"gpt-6.1-sol", "o4-mini", "local-think"} <= set(listed)
    assert "claude-opus-5-5" not in listed
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("claude-opus-5-5")
    assert missing.value.code == "model_not_found"


def test_a_thinking_model_reports_its_reasoning_tokens(client: openai.OpenAI) -> None:
    def ask(limit: int, **more: Any) -> openai.types.chat.ChatCompletion:
        messages: Any = [{"role": "user", "content": "Why?"}]
        model = "gpt-6.1-sol/echo"
        answer = client.chat.completions.create(model=model, messages=messages, max_completion_tokens=limit, **more)
        assert isinstance(answer, openai.types.chat.ChatCompletion)
        return answer

    whole = ask(2000)
    assert whole.usage
    assert whole.usage.completion_tokens_details
    assert whole.usage.completion_tokens_details.reasoning_tokens == whole.usage.completion_tokens - 1
    cut = ask(30)
    assert cut.usage
    assert cut.usage.completion_tokens_details
    assert cut.usage.completion_tokens_details.reasoning_tokens == 30
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("", "length")
    assert ask(500, reasoning_effort="low").choices[0].message.content
    with pytest.raises(openai.BadRequestError) as refused:
        ask(500, reasoning_effort="none")
    assert (refused.value.code, refused.value.param) == ("unsupported_value", "reasoning_effort")


def test_a_batch_of_a_thinking_model_has_empty_answers(client: openai.OpenAI) -> None:
    lines = chat_lines("thinks", 20, model="gpt-6.1-sol/echo", max_completion_tokens=300)
    batch = finish(client, submit(client, lines))
    assert batch.output_file_id
    rows = [json.loads(line) for line in client.files.content(batch.output_file_id).text.split("\n") if line]
    bodies = [openai.types.chat.ChatCompletion.model_validate(row["response"]["body"], strict=True) for row in rows]
    empty = [body for body in bodies if not body.choices[0].message.content]
    assert 0 < len(empty) < 20
    assert {body.choices[0].finish_reason for body in empty} == {"length"}
    assert batch.usage
    assert batch.usage.output_tokens_details.reasoning_tokens > 20 * 200


def test_a_local_models_reasoning_field_is_kept(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="local-reasoning/echo", messages=[{"role": "user", "content": "odd"}], max_tokens=20
    )
    assert answer.choices[0].message.content is None
    assert answer.choices[0].message.to_dict()["reasoning_content"]


def test_invalid_calls_get_the_providers_errors(client: openai.OpenAI, emulator: Emulator) -> None:
    chat: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**chat, "model": "gpt-none"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(**chat, top_logprobs=3)
    assert wrong.value.param == "top_logprobs"
    with pytest.raises(openai.BadRequestError, match=r"Must be \.jsonl"):
        client.files.create(file=("input.csv", b"a,b"), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="Cannot find file file-none"):
        client.batches.create(input_file_id="file-none", endpoint="/v1/chat/completions", completion_window="24h")
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")
    with pytest.raises(openai.BadRequestError) as missing_parameter:
        client.post("/batches", body={"endpoint": "/v1/chat/completions"}, cast_to=object)
    assert missing_parameter.value.body == {
        "message": "Missing required parameter: 'input_file_id'.",
        "type": "invalid_request_error",
        "param": "input_file_id",
        "code": "missing_required_parameter",
    }
    file = client.files.create(file=("a-b.jsonl", b"{}"), purpose="batch").id
    for change in (
        {"completion_window": "48h"},
        {"endpoint": "/v1/nope"},
        {"metadata": {"k": "v" * 513}},
        {"output_expires_after": {"anchor": "created_at", "seconds": 9}},
    ):
        body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h", **change}
        assert emulator.call("POST", "/openai/v1/batches", body).status == 400
    with openai.OpenAI(base_url=emulator.openai_url, api_key="wrong", max_retries=0) as wrong_client:
        with pytest.raises(openai.AuthenticationError) as denied:
            wrong_client.models.list()
        assert denied.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("400-not-json", openai.BadRequestError),
        ("401-revoked", openai.AuthenticationError),
        ("402-billing", openai.APIStatusError),
        ("403-permission", openai.PermissionDeniedError),
        ("404-foreign-key", openai.NotFoundError),
        ("408-before", openai.APIStatusError),
        ("409-before", openai.ConflictError),
        ("429-bare", openai.RateLimitError),
        ("429-insufficient-quota", openai.RateLimitError),
        ("500-before", openai.InternalServerError),
        ("502-before", openai.InternalServerError),
        ("503-before", openai.InternalServerError),
        ("529-before", openai.InternalServerError),
        ("close-before", openai.APIConnectionError),
        ("reset-before", openai.APIConnectionError),
        ("bad-status-line-before", openai.APIConnectionError),
        ("hang-before", openai.APITimeoutError),
        ("empty-before", json.JSONDecodeError),
    ],
)
def test_every_error_class_of_the_package_is_raised(faulty: Emulator, fault: str, error: type[Exception]) -> None:
    with faulty.openai(timeout=0.5) as client, pytest.raises(error):
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": fault}])


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that injects the fault that the prompt names: the key of a call is a digest of seed and prompt."""

    def key(name: str) -> str:
        return hashlib.sha256(f"None {name}".encode()).hexdigest()[:12]

    rules = [
        {"do": name, "on": "chat", "key": key(name)}
        for name, fault in FAULTS.items()
        if fault.kind == "before" and fault.dialect != "anthropic" and "chat" in fault.calls
    ]
    emulator = Emulator(tmp_path_factory.mktemp("faulty"), rules=rules)
    yield emulator
    emulator.stop()


def test_the_package_repeats_a_lost_create_and_pays_twice(emulate: Emulate) -> None:
    """Creates are not idempotent. Therefore batchbench does not let a library retry a create."""
    emulator = emulate(rules=[{"do": "500-after", "on": "create", "first": 2}])
    with openai.OpenAI(base_url=emulator.openai_url, api_key=emulator.token, max_retries=2) as client:
        submit(client, chat_lines("again", 2))
    assert [line["nonce"] for line in emulator.events("accepted")] == ["n1"] * 3
