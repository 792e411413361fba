"""Chat servers and gateways as users meet them: they end in answers, or in a message that names the cause."""

import json
import socket
import time
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from tests.servers.conftest import Program, answers, notes, results
from tests.servers.server import Call, Server, answer, completion, refuse, serving


def model(server: Server) -> str:
    return f"chat:m@{server.url}"


def flagged(call: Call) -> web.Response:
    """OpenRouter: every fourth prompt is flagged."""
    if call.number % 4:
        return answer()
    metadata = {"reasons": ["harassment"], "flagged_input": call.prompt[:20], "provider_name": "p"}
    return refuse(403, {"error": {"code": 403, "message": "Your input was flagged", "metadata": metadata}})


def test_a_flagged_prompt_is_the_outcome_of_its_row(ask: Program, home: Path) -> None:
    with serving(Server(flagged)) as server:
        done = ask(model(server))
        again = ask(model(server))
    assert (done.code, done.report["answered"], done.report["refused"]) == (0, 9, 3), done
    assert Counter(answers(home)["outcome"]) == {"answered": 9, "filtered": 3}
    kept = [line["response"] for line in results(home) if line["response"]["status_code"] == 403]
    assert kept[0]["body"]["error"]["metadata"]["reasons"] == ["harassment"]
    assert (again.code, len(server.chat_calls())) == (0, 12), again


def test_a_server_that_forbids_the_key_ends_the_run_at_once(ask: Program) -> None:
    with serving(Server(lambda _: refuse(403, {"error": {"message": "no access to this model"}}))) as server:
        done = ask(model(server))
    assert (done.code, len(server.chat_calls())) == (77, 2), done
    assert "no access to this model" in done.stderr


def test_a_refusal_that_is_not_about_the_prompt_is_kept_with_its_status(ask: Program, home: Path) -> None:
    def chat(call: Call) -> web.Response:
        return refuse(403, {"error": "quota of this hour"}) if call.number == 5 else answer()

    with serving(Server(chat)) as server:
        done = ask(model(server))
        again = ask(model(server))
    assert (done.code, done.report["answered"]) == (6, 11), done
    assert (again.code, again.report["answered"], len(server.chat_calls())) == (0, 12, 13), again
    (line,) = [line for line in results(home) if line["response"]["status_code"] == 403]
    assert line["response"]["body"]["error"]["message"] == "quota of this hour"


def test_a_server_that_asks_to_wait_with_402_is_asked_again(ask: Program) -> None:
    def chat(call: Call) -> web.Response:
        error = {"error": {"code": 402, "message": "budget of calls in flight reached"}}
        return refuse(402, error, Retry_After="1") if call.number in (2, 3) else answer()

    with serving(Server(chat)) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"], len(server.chat_calls())) == (0, 12, 14), done


def test_a_server_that_wants_money_ends_the_run(ask: Program) -> None:
    with serving(Server(lambda _: refuse(402, {"error": {"message": "insufficient credits"}}))) as server:
        done = ask(model(server))
    assert (done.code, "insufficient credits" in done.stderr) == (77, True), done


@pytest.mark.parametrize(("code", "lost"), [(429, 0), (408, 2), (502, 2)])
def test_a_temporary_error_inside_a_success_is_asked_again(ask: Program, home: Path, code: int, lost: int) -> None:
    """A rate limit is waited out and is free. Any other error may have been charged, as one with status 502 may be."""

    def chat(call: Call) -> web.Response:
        if call.number % 5:
            return answer()
        return web.json_response({"error": {"code": code, "message": "upstream"}})

    with serving(Server(chat)) as server:
        done = ask(model(server), "--price", "1,1", "--pilot", "none")
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert Counter(answers(home)["outcome"]) == {"answered": 12}
    assert len([line for line in results(home) if line["error"] and line["error"]["code"] == "call_lost"]) == lost
    assert len(server.chat_calls()) == len([note for note in notes(home) if note[0] == "+"]) > 12


def test_the_other_name_of_the_token_limit_is_used_once_the_server_refuses_ours(ask: Program, home: Path) -> None:
    def chat(call: Call) -> web.Response:
        if "max_tokens" not in call.body:
            return answer()
        told = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return refuse(400, {"error": {"message": told, "param": "max_tokens", "code": "unsupported_parameter"}})

    with serving(Server(chat)) as server:
        done = ask(model(server), "--price", "1,1")
    assert (done.code, done.report["answered"]) == (0, 12), done
    limits = [call.body.get("max_completion_tokens") for call in server.chat_calls()]
    assert limits == [None] + [300] * 14  # the first question of the pilot finds it out, and is repeated
    kinds = Counter(note[0] for note in notes(home))
    assert kinds["+"] - kinds["-"] == 12


def test_two_refused_calls_at_the_start_of_a_batch_are_repeated_with_the_other_name(ask: Program, home: Path) -> None:
    def chat(call: Call) -> web.Response:
        if "max_tokens" in call.body:
            return refuse(422, {"detail": [{"loc": ["body", "max_tokens"], "msg": "Extra inputs are not permitted"}]})
        return answer()

    with serving(Server(chat)) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"], len(server.chat_calls())) == (0, 12, 14), done
    kinds = Counter(note[0] for note in notes(home))
    assert (kinds["+"], kinds["-"]) == (14, 2)


@pytest.mark.parametrize(
    "text", ["max_tokens is too large: 300. At most 100.", "max_tokens: values above 100 are not allowed for this key"]
)
def test_a_refused_value_of_the_token_limit_is_not_sent_under_another_name(ask: Program, home: Path, text: str) -> None:
    told = {"object": "error", "message": text, "type": "BadRequestError"}
    with serving(Server(lambda _: refuse(400, told))) as server:
        done = ask(model(server))
    assert done.code != 0
    assert {line["response"]["body"]["error"]["message"] for line in results(home)} == {text}
    assert all("max_tokens" in call.body for call in server.chat_calls())


def test_any_status_of_success_is_a_success(ask: Program) -> None:
    with serving(Server(lambda _: answer(201))) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"]) == (0, 12), done


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_answers_are_read(ask: Program, encoding: str) -> None:
    with serving(Server(lambda _: answer(), encoding=encoding)) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"], len(server.chat_calls())) == (0, 12, 12), done


@pytest.mark.full
def test_a_slow_server_gets_the_time_that_the_user_gives_it(ask: Program) -> None:
    with serving(Server(lambda _: answer(), pause=0.6)) as server:
        slow = ask(model(server), "--timeout", "0.2", k=4)
        done = ask(model(server), "--timeout", "20", k=4)
    assert slow.code == 1, slow
    assert "no answer within 0.2 s: --timeout" in slow.stderr
    assert "rate limit" not in slow.stderr
    assert (done.code, done.report["answered"]) == (0, 4), done


@pytest.mark.full
def test_a_server_gets_two_calls_at_first(ask: Program) -> None:
    with serving(Server(lambda _: answer(), pause=0.5)) as server:
        done = ask(model(server), k=2)
        assert (done.code, len(server.chat_calls())) == (0, 2), done
    with serving(Server(lambda _: None)) as server:
        assert ask(model(server), k=12).code == 1
        assert len(server.chat_calls()) < 12


def page(status: int) -> web.Response:
    return web.Response(status=status, text="<html><h1>Welcome to nginx</h1></html>", content_type="text/html")


FAILURES = {
    "html": (
        lambda _: page(200),
        "HTML instead of JSON (<html><h1>Welcome to nginx",
        "check the URL path, for example /v1",
    ),
    "html-502": (lambda _: page(502), "502: the server sent HTML instead of JSON (<html>", "Repair this"),
    "stream": (
        lambda _: web.Response(text='data: {"choices":[]}\n\ndata: [DONE]\n\n', content_type="text/event-stream"),
        "an event stream instead of JSON (data:",
        "pass --extra stream=false",
    ),
    "empty": (lambda _: web.Response(), "an empty reply", "check the URL path"),
    "500": (lambda _: refuse(500, {"error": "CUDA out of memory"}), "500: CUDA out of memory", "Repair this"),
    "reset": (lambda _: None, "the server closed the connection without a reply", "Repair this"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_server_is_described_by_its_own_words(ask: Program, name: str) -> None:
    chat, cause, advice = FAILURES[name]
    with serving(Server(chat)) as server:
        done = ask(model(server))
    assert done.code == 1, done
    assert cause in done.stderr
    assert advice in done.stderr
    assert "rate limit" not in done.stderr
    assert len(server.chat_calls()) < 12


def test_a_closed_port_is_reported_within_seconds(ask: Program) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    done = ask(f"chat:m@http://127.0.0.1:{port}/v1")
    assert done.code == 1, done
    assert f"the server cannot be reached (cannot connect to 127.0.0.1:{port} (Connection refused)" in done.stderr
    assert "rate limit" not in done.stderr
    assert time.monotonic() - began < 30  # 44 s of it were pauses


WORDS: dict[str, tuple[dict[str, object], str]] = {
    "string": ({"error": "model is not loaded"}, "model is not loaded"),
    "vllm": ({"object": "error", "message": "m is unknown", "type": "NotFoundError", "code": 404}, "m is unknown"),
    "fastapi": ({"detail": "Not Found"}, "Not Found"),
    "fields": ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
    "nested": ({"error": {"message": {"detail": "too deep"}, "code": 404}}, "too deep"),
}


@pytest.mark.parametrize("name", WORDS)
def test_errors_of_every_shape_are_understood(ask: Program, home: Path, name: str) -> None:
    body, words = WORDS[name]
    with serving(Server(lambda call: refuse(404, body) if call.number == 5 else answer())) as server:
        ask(model(server))
    (line,) = [line["response"] for line in results(home) if line["response"]["status_code"] == 404]
    assert line["body"]["error"]["message"] == words
    assert set(line["body"]) >= set(body)


@pytest.mark.full
def test_a_redirect_of_a_call_is_named(ask: Program) -> None:
    with serving(
        Server(lambda _: web.Response(status=307, headers={"Location": "https://elsewhere.example/"}))
    ) as server:
        done = ask(model(server))
    assert done.code == 1, done
    assert "a redirect to elsewhere.example, which is not followed: check the base URL" in done.stderr


def test_a_pause_for_a_rate_limit_is_called_one(ask: Program) -> None:
    def chat(call: Call) -> web.Response:
        return refuse(429, {"error": "slow down"}, Retry_After="3") if call.number == 1 else answer()

    with serving(Server(chat)) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert "the server's rate limit allows the next call at" in done.stderr


# -- other machines and proxies ------------------------------------------------------------------------------

LAN = "http://gpu.lab.example:8000/v1"  # reached through a proxy only: the name does not exist


def test_a_server_on_another_machine_needs_no_key_and_no_https(ask: Program) -> None:
    with serving(Server(lambda _: answer())) as server:
        proxy = server.url.removesuffix("/v1")
        done = ask(f"chat:m@{LAN}", "--proxy", proxy, "--price", "0,0", "--pilot", "none")
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert {call.url for call in server.chat_calls()} == {f"{LAN}/chat/completions"}
    assert not any("Authorization" in call.headers for call in server.calls)


def test_a_key_is_sent_without_encryption_only_if_the_user_allows_it(ask: Program) -> None:
    with serving(Server(lambda _: answer())) as server:
        words = f"chat:m@{LAN}", "--proxy", server.url.removesuffix("/v1"), "--price", "0,0", "--pilot", "none"
        refused = ask(*words, CHAT_API_KEY="sk-canary-12345")
        assert (refused.code, server.calls) == (2, []), refused
        assert "--allow-http" in refused.stderr
        assert "ssh -L" in refused.stderr
        done = ask(*words, "--allow-http", CHAT_API_KEY="sk-canary-12345")
    assert (done.code, done.report["answered"]) == (0, 12), done
    assert {call.headers["Authorization"] for call in server.chat_calls()} == {"Bearer sk-canary-12345"}


def test_a_key_for_this_machine_does_not_go_to_a_proxy_on_another(ask: Program) -> None:
    refused = ask(
        "chat:m@http://127.0.0.1:9/v1", "--proxy", "http://proxy.example:3128", CHAT_API_KEY="sk-canary-12345"
    )
    assert (refused.code, "--allow-http" in refused.stderr) == (2, True), refused


def test_no_message_shows_the_password_of_a_proxy(ask: Program, home: Path) -> None:
    def chat(call: Call) -> web.Response:
        said = call.headers.get("Proxy-Authorization", "")
        return refuse(400, {"error": f"{said} of uncle with pa55-word is wrong"})

    with serving(Server(chat)) as server:
        proxy = server.url.removesuffix("/v1").replace("//", "//uncle:pa55-word@")
        done = ask(f"chat:m@{LAN}", "--proxy", proxy, "--price", "0,0", "--pilot", "none")
    assert done.code != 0
    assert server.chat_calls()[0].headers["Proxy-Authorization"] == "Basic dW5jbGU6cGE1NS13b3Jk"
    shown = f"{results(home)} {done.stderr} {done.stdout}"
    assert "with [key] is wrong" in shown
    for secret in ("pa55-word", "dW5jbGU6cGE1NS13b3Jk"):
        assert secret not in shown
    wrong = ask(f"chat:m@{LAN}", "--proxy", "ftp://uncle:pa55-word@host", "--price", "0,0")
    assert (wrong.code, "pa55-word" in wrong.stderr) == (2, False), wrong


def test_the_proxies_of_the_environment_are_not_used(ask: Program) -> None:
    with serving(Server(lambda _: answer())) as server:
        done = ask(
            model(server),
            http_proxy="http://127.0.0.1:9",
            HTTP_PROXY="http://127.0.0.1:9",
            ALL_PROXY="http://127.0.0.1:9",
        )
    assert (done.code, done.report["answered"]) == (0, 12), done


def test_an_answer_with_a_null_error_is_an_answer(ask: Program) -> None:
    with serving(Server(lambda _: web.json_response(completion(error=None)))) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"]) == (0, 12), done


@pytest.mark.parametrize("body", [{"error": {"error": {"message": "no model loaded"}}}, {"error": "no model loaded"}])
def test_a_server_that_refuses_everything_is_asked_again_once_it_is_repaired(ask: Program, body: object) -> None:
    loaded = False

    def chat(_: Call) -> web.Response:
        return answer() if loaded else refuse(400, body)

    with serving(Server(chat)) as server:
        refused = ask(model(server))
        loaded = True
        done = ask(model(server))
    assert (refused.code, refused.report["missing"], "no model loaded" in refused.stderr) == (1, 12, True), refused
    assert (done.code, done.report["answered"]) == (0, 12), done


def test_a_forbidden_first_prompt_does_not_stop_the_next_start(ask: Program) -> None:
    first = ""

    def chat(call: Call) -> web.Response:
        nonlocal first
        first = first or call.prompt
        return refuse(403, {"error": "this violates our terms"}) if call.prompt == first else answer()

    with serving(Server(chat)) as server:
        codes = [ask(model(server)).code for _ in range(2)]
    assert codes == [77, 6]


def test_infinite_numbers_beside_the_text_do_not_lose_it(ask: Program) -> None:
    text = json.dumps(completion(timings={"speed": float("-inf")}))
    with serving(Server(lambda _: web.Response(text=text, content_type="application/json"))) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"]) == (0, 12), done


def test_invisible_characters_are_no_answer(ask: Program) -> None:
    with serving(Server(lambda _: answer(text=" \n\u200b\u00a0"))) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"], done.report["empty"]) == (5, 0, 12), done


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b'{"detail": "Not Found"}'), (404, b"404 page not found"), (405, b"<html>no POST</html>")],
)
def test_a_wrong_url_path_is_named(ask: Program, status: int, body: bytes) -> None:
    with serving(Server(lambda _: web.Response(status=status, body=body))) as server:
        done = ask(model(server), k=4)
    assert done.code == 1, done
    assert "check the URL path, for example /v1" in done.stderr


def test_long_headers_do_not_lose_the_answer(ask: Program) -> None:
    def chat(_: Call) -> web.Response:
        reply = answer()
        reply.headers["Content-Security-Policy"] = "a" * 20_000
        return reply

    with serving(Server(chat)) as server:
        done = ask(model(server))
    assert (done.code, done.report["answered"], len(server.chat_calls())) == (0, 12, 12), done


def test_an_answer_in_another_format_is_shown(ask: Program) -> None:
    reply = {"choices": [{"text": "You have been selected.", "finish_reason": "stop"}]}
    with serving(Server(lambda _: web.json_response(reply))) as server:
        done = ask(model(server), k=30)
    assert done.code == 1, done
    assert '"choices":[{"text":"You have been selected."' in done.stderr
    assert "--retry-failed" in done.stderr


def test_a_blocked_prompt_does_not_stop_the_pilot(ask: Program) -> None:
    """A firewall refuses a prompt with a page of its own, which does not say that it is about the prompt."""

    def chat(call: Call) -> web.Response:
        blocked = call.number in (1, 4)
        return web.Response(status=403, text="<html>You are blocked</html>") if blocked else answer()

    with serving(Server(chat)) as server:
        done = ask(model(server), "--price", "1,1", k=60)
    assert (done.code, done.report["answered"]) == (0, 60), done


def test_a_key_that_is_refused_in_the_pilot_ends_the_run(ask: Program) -> None:
    with serving(Server(lambda _: refuse(403, {"error": {"message": "Forbidden"}}))) as server:
        done = ask(model(server), "--price", "1,1", k=60)
    assert (done.code, len(server.chat_calls())) == (77, 3), done
