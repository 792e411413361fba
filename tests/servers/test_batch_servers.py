"""Batch APIs that differ from OpenAI's in what proxies, gateways and other providers change."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.dispatch.scene import Ran
from tests.servers.conftest import Program
from tests.servers.server import Call, Server, answer, refuse, serving

KEY = "sk-canary-0123456789"
NO_WAIT = ("--price", "1,1", "--pilot", "none")


def run(ask: Program, server: Server, *words: str | int, k: int = 12) -> Ran:
    return ask("openai:m", "--base-url", server.url, *NO_WAIT, *words, k=k, OPENAI_API_KEY=KEY)


def made(**options: Any) -> Server:
    return Server(lambda _: answer(), **options)


@pytest.mark.parametrize("status", [201, 202])
def test_an_upload_and_a_create_may_answer_with_any_status_of_success(ask: Program, status: int) -> None:
    with serving(made(created=status)) as server:
        done = run(ask, server)
    assert (done.code, done.report["answered"], len(server.batches)) == (0, 12, 1), done


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_server_may_compress_everything(ask: Program, encoding: str) -> None:
    with serving(made(encoding=encoding)) as server:
        done = run(ask, server, "--pilot", "auto")
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert (len(server.batches), len(server.chat_calls())) == (1, 2)


def test_results_may_be_at_another_host_which_gets_no_key(ask: Program) -> None:
    with serving(made()) as storage, serving(made()) as server:
        server.redirect, storage.files = storage.url, server.files
        done = run(ask, server)
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert [call.path for call in storage.calls] == ["/v1/stored/out-batch-0"]
    assert not any(KEY in value for call in storage.calls for value in call.headers.values())
    assert all(call.headers["Authorization"] == f"Bearer {KEY}" for call in server.calls)


def test_results_may_be_at_another_path_of_the_same_host(ask: Program) -> None:
    with serving(made()) as server:
        server.redirect = server.url
        done = run(ask, server)
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert server.calls[-1].headers["Authorization"] == f"Bearer {KEY}"


def tokens(requests: list[dict[str, Any]]) -> int:
    return sum(len(one["body"]["messages"][-1]["content"]) // 4 + 8 for one in requests)


def limited(limit: int, text: str) -> Callable[[list[dict[str, Any]]], str | None]:
    return lambda requests: text if tokens(requests) > limit else None


def refusals(home: Path) -> int:
    (journal,) = home.glob("cache/*/*/journal")
    events = [json.loads(line.split(" ", 2)[2]) for line in journal.read_text().splitlines()]
    return sum(event["event"] == "rejected" for event in events)


def test_a_queue_limit_that_a_refusal_names_is_kept(ask: Program, home: Path) -> None:
    text = "Enqueued token limit reached for m. Limit: 1,500 enqueued tokens."
    with serving(made(failed=limited(1500, text))) as server:
        done = run(ask, server, k=200)
    assert (done.code, done.report["answered"]) == (0, 200), done
    assert refusals(home) <= 2
    assert len(server.batches) < 40


@pytest.mark.full
def test_a_queue_limit_that_no_refusal_names_is_found_with_few_refusals(ask: Program, home: Path) -> None:
    with serving(made(failed=limited(1500, "Enqueued token limit reached."))) as server:
        done = run(ask, server, k=200)
    assert (done.code, done.report["answered"]) == (0, 200), done
    assert refusals(home) <= len(server.batches) // 3


def test_a_refused_first_prompt_does_not_stop_the_pilot(ask: Program) -> None:
    def chat(call: Call) -> web.Response:
        return refuse(403, {"error": {"message": "Your input was flagged"}}) if call.number <= 2 else answer()

    with serving(Server(chat)) as server:
        done = run(ask, server, "--pilot", "auto", k=60)
    assert (done.code, done.report["answered"], len(server.chat_calls())) == (0, 60, 12), done


def test_an_overloaded_server_gets_another_question_of_the_pilot(ask: Program) -> None:
    def chat(call: Call) -> web.Response:
        return refuse(503, {"error": {"message": "overloaded"}}) if call.number == 1 else answer()

    with serving(Server(chat)) as server:
        done = run(ask, server, "--pilot", "auto", k=60)
    assert (done.code, done.report["answered"]) == (0, 60), done


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (web.Response(text="<html>Sign in</html>", content_type="text/html"), "<html>Sign in"),
        (refuse(500, {"error": "CUDA out of memory"}), "CUDA out of memory"),
        (refuse(400, {"error": "no model is loaded"}), "no model is loaded"),
    ],
)
def test_a_pilot_without_an_answer_says_why(ask: Program, reply: web.Response, words: str) -> None:
    with serving(Server(lambda _: refuse_again(reply))) as server:
        done = run(ask, server, "--pilot", "auto")
    assert (done.code, len(server.batches)) == (1, 0), done
    assert words in done.stderr


def refuse_again(reply: web.Response) -> web.Response:
    """A reply can be sent only once."""
    return web.Response(status=reply.status, text=reply.text, content_type=reply.content_type)


def changed(server: Server, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Server:
    """A server that shows its batches differently."""
    made_batch = server.create

    def create(order: dict[str, Any]) -> dict[str, Any]:
        batch = made_batch(order)
        server.batches[batch["id"]] = change(batch)
        return server.batches[batch["id"]]

    server.create = create  # type: ignore[method-assign]
    return server


BATCHES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "floats": lambda batch: batch | {"request_counts": {"total": 12.0, "completed": 12.0, "failed": 0.0}},
    "strings": lambda batch: batch | {"created_at": str(batch["created_at"]), "request_counts": {"total": "12"}},
    "errors-list": lambda batch: batch | {"errors": []},
    "error-code": lambda batch: batch | {"errors": {"data": [{"code": 400, "message": "one line"}]}},
    "metadata": lambda batch: batch | {"metadata": {**batch["metadata"], "tags": ["a"], "n": 3}},
    "least": lambda batch: {name: batch[name] for name in ("id", "status", "created_at", "output_file_id")},
}


@pytest.mark.parametrize("name", BATCHES)
def test_an_unusual_batch_object_is_understood(ask: Program, name: str) -> None:
    with serving(changed(made(), BATCHES[name])) as server:
        done = run(ask, server)
    assert (done.code, done.report["answered"], len(server.batches)) == (0, 12, 1), done


def test_a_server_without_a_batch_api_is_named(ask: Program) -> None:
    server = made()
    server.batch_call = lambda *_: refuse(404, {"detail": "Not Found"})  # type: ignore[method-assign]
    with serving(server):
        done = run(ask, server)
    assert done.code == 1, done
    assert "the server has no list of batches" in done.stderr
    assert "chat:MODEL@URL" in done.stderr
