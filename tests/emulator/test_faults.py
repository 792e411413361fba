"""Every fault of the catalogue does what its description says.

A fault without a check here fails, so every new fault needs one.
"""

import gzip
import http.client
import json
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import pytest

from batchbench.emulator.faults.catalogue import FAULTS, Fault
from tests.emulator.conftest import Emulate
from tests.emulator.driver import MESSAGE_BATCHES, Answer, Emulator, chat_body, chat_lines, message_requests

Json = dict[str, Any]
CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"


def nonce(name: str, dialect: str) -> str:
    return f"{dialect}_{name}".replace("-", "_")


def cases(*where: str) -> list[tuple[str, str]]:
    """(fault, dialect) for every fault of these kinds."""
    return [
        (fault.name, dialect)
        for fault in FAULTS.values()
        if fault.kind in where
        for dialect in ("openai", "anthropic")
        if fault.dialect in (None, dialect)
    ]


def rule(fault: Fault) -> Json:
    """A rule that affects only the test of this fault."""
    key = f"^(openai|anthropic)_{fault.name.replace('-', '_')}(-|$)"
    made: Json = {"do": fault.name, "key": key}
    if fault.kind in ("before", "after", "late", "change"):
        made["on"] = "create"
    if fault.name == "line-huge":
        made["value"] = 2_000_000
    if fault.kind == "line":
        made["nth"] = [2, 5]
    return made


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator with all rules whose key selects their test."""
    rules = [rule(fault) for fault in FAULTS.values() if fault.kind != "list"]
    folder = tmp_path_factory.mktemp("hostile")
    with open(folder / "stderr", "w+") as stderr:
        emulator = Emulator(folder / "state", rules=rules, stderr=stderr)
        yield emulator
        emulator.stop()
        stderr.seek(0)
        assert stderr.read() == "", "the emulator itself has no errors"


def create(emulator: Emulator, dialect: str, name: str, n: int = 3, timeout: float = 20.0) -> Answer:
    if dialect == "anthropic":
        body = {"requests": message_requests(nonce(name, dialect), n)}
        return emulator.call("POST", MESSAGE_BATCHES, body, timeout=timeout)
    more: Json = {"logprobs": True, "top_logprobs": 2} if "logprobs" in name else {}
    file = emulator.upload(nonce(name, dialect), chat_lines(nonce(name, dialect), n, **more)).json()["id"]
    return emulator.create(file, timeout=timeout)


def finished(emulator: Emulator, dialect: str, name: str, n: int = 8) -> Json:
    answer = create(emulator, dialect, name, n)
    assert answer.status == 200, answer
    return emulator.wait(answer.json()["id"])


def accepted(emulator: Emulator, name: str, dialect: str) -> list[Json]:
    return [line for line in emulator.events("accepted") if line["nonce"] == nonce(name, dialect)]


# Replies that replace the real one.

STATUSES = {"408", "409", "500", "502", "503", "504", "520", "529"}
BODIES = {
    "html": b"<!DOCTYPE html>",
    "empty": b"",
    "null": b"null",
    "other-json": b'["what"',
    "event-stream": b'data: {"object"',
    "error-200": b'{"error":{',
}
BROKEN: dict[str, tuple[type[Exception], ...]] = {
    "reset": (ConnectionResetError,),
    "close": (http.client.RemoteDisconnected,),
    "hang": (TimeoutError,),
    "bad-status-line": (http.client.BadStatusLine,),
    "http09": (http.client.BadStatusLine,),
    "huge-header": (http.client.LineTooLong,),
    "header-bomb": (http.client.HTTPException,),
}
REFUSED = {
    "400-cannot-find-file": 400,
    "400-batch-only": 400,
    "400-not-json": 400,
    "400-usage-limits": 400,
    "401-revoked": 401,
    "401-echo-key": 401,
    "402-billing": 402,
    "402-retry-after": 402,
    "403-permission": 403,
    "403-flagged": 403,
    "error-string": 400,
    "error-flat": 400,
    "error-int-code": 400,
    "error-nested": 400,
    "error-detail": 422,
    "404-foreign-key": 404,
    "413-too-large": 413,
    "413-html": 413,
    **{f"redirect-{status}": status for status in (301, 302, 303, 307, 308)},
}
RETRY_AFTER: dict[str, tuple[str, str] | None] = {
    "429-bare": None,
    "429-seconds": ("retry-after", "2"),
    "429-float": ("retry-after", "1.5"),
    "429-date": ("retry-after", "GMT"),
    "429-past-date": ("retry-after", "2015"),
    "429-ms": ("retry-after-ms", "300"),
    "429-negative": ("retry-after", "-5"),
    "429-inf": ("retry-after", "inf"),
    "429-nan": ("retry-after", "nan"),
    "429-text": ("retry-after", "37s"),
    "429-huge": ("retry-after", "1000000000"),
    "429-no-retry": ("x-should-retry", "false"),
    "429-slow-down": ("retry-after", "1"),
    "429-queue-full": None,
    "429-insufficient-quota": None,
    "429-credit-balance": None,
    "429-org-spend-limit": None,
    "429-project-spend-limit": None,
    "429-usage-limit": None,
    "429-hard-limit": None,
    "429-spend-cap": None,
    "429-ramp-limit": ("retry-after", "3"),
}


@pytest.mark.parametrize(("name", "dialect"), cases("before", "after"))
def test_a_reply_is_replaced(hostile: Emulator, name: str, dialect: str) -> None:
    where = FAULTS[name].kind
    kind = name.removesuffix(f"-{where}")
    if kind in BROKEN:
        with pytest.raises(BROKEN[kind]):
            create(hostile, dialect, name, timeout=0.4 if kind == "hang" else 20.0)
    elif kind == "extra-bytes":
        assert all_bytes(hostile, dialect, name).endswith(b'{"id":"not yours"}')
    else:
        check_reply(create(hostile, dialect, name), kind, name, dialect)
    assert len(accepted(hostile, name, dialect)) == (1 if where == "after" else 0)


def check_reply(answer: Answer, kind: str, name: str, dialect: str) -> None:
    if kind in BODIES:
        assert answer.status == 200
        assert answer.body.startswith(BODIES[kind])
    elif name in REFUSED:
        assert answer.status == REFUSED[name]
        assert "location" in answer.headers or b"error" in answer.body or name == "413-html"
    elif name in RETRY_AFTER:
        assert answer.status == 429
        header = RETRY_AFTER[name]
        if header:
            assert header[1] in answer.headers[header[0]]
        else:
            assert "retry-after" not in answer.headers
        check_code(answer, name, dialect)
    else:
        assert kind in STATUSES
        assert answer.status == int(kind)
        assert (b"<html>" in answer.body) == (kind in ("502", "520"))


def check_code(answer: Answer, name: str, dialect: str) -> None:
    error = answer.json()["error"]
    if name == "429-spend-cap":
        assert error["details"]["error_code"] == "enforced_spend_limit_reached"
    elif name == "429-ramp-limit":
        assert error["details"]["error_code"] == "ramp_limit_exceeded"
    elif name == "429-insufficient-quota":
        assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    elif dialect == "openai":
        assert error["code"] is None or error["code"].islower()
    else:
        assert error["type"] == "rate_limit_error"
        assert "details" not in error


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("error-string", ("error",)),
        ("error-flat", ("message",)),
        ("error-int-code", ("error", "message")),
        ("error-nested", ("error", "metadata", "raw")),
        ("error-detail", ("detail", 0, "msg")),
        ("403-flagged", ("error", "metadata", "reasons", 0)),
    ],
)
def test_other_servers_put_the_message_elsewhere(hostile: Emulator, name: str, where: tuple[Any, ...]) -> None:
    found = create(hostile, "openai", name).json()
    for step in where:
        found = found[step]
    assert isinstance(found, str)


def test_the_status_of_an_error_in_another_format_can_be_chosen(emulate: Emulate) -> None:
    emulator = emulate(rules=[{"do": "error-string", "on": "chat", "value": 500}])
    assert emulator.call("POST", CHAT, chat_body("x")).status == 500


def test_a_credit_that_is_held_says_when_to_try_again(hostile: Emulator) -> None:
    assert create(hostile, "openai", "402-retry-after").headers["retry-after"] == "2"


def test_the_same_prompts_are_flagged_every_time(emulate: Emulate) -> None:
    emulator = emulate(rules=[{"do": "403-flagged", "on": "chat", "p": 0.5}])
    rounds = [[emulator.call("POST", CHAT, chat_body(f"Prompt {k}")).status for k in range(20)] for _ in range(3)]
    assert rounds[0] == rounds[1] == rounds[2]
    assert set(rounds[0]) == {200, 403}


# The right reply, sent in another way.


@pytest.mark.parametrize(("name", "dialect"), [case for case in cases("change") if case[0] != "slow-reply"])
def test_a_reply_is_right_but_sent_in_another_way(hostile: Emulator, name: str, dialect: str) -> None:
    answer = create(hostile, dialect, name)
    batch = json.loads(gzip.decompress(answer.body)) if name == "gzip" else answer.json()
    assert answer.status == (200 if name == "gzip" else int(name.removeprefix("status-")))
    assert answer.headers.get("content-encoding") == ("gzip" if name == "gzip" else None)
    assert hostile.wait(batch["id"])["id"] == batch["id"]
    assert len(accepted(hostile, name, dialect)) == 1


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_reply_is_right_but_late(hostile: Emulator, dialect: str) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(create, hostile, dialect, "slow-reply")
        while not accepted(hostile, "slow-reply", dialect):
            time.sleep(0.01)
        assert not waiting.done(), "the server has acted, but has not replied"
        hostile.advance(131)
        assert waiting.result().status == 200


def test_every_kind_of_reply_can_be_compressed(emulate: Emulate) -> None:
    emulator = emulate(rules=[{"do": "gzip", "on": ["upload", "content", "results", "chat", "messages"]}])
    content = b"".join(json.dumps(line).encode() + b"\n" for line in chat_lines("packed", 3))
    file = json.loads(gzip.decompress(emulator.upload_bytes("packed-input.jsonl", content).body))
    batch = emulator.wait(emulator.create(file["id"]).json()["id"])
    for done in (batch, emulator.wait(emulator.submit_messages("packed", 3))):
        answer = emulator.call("GET", download_path(emulator, done))
        assert gzip.decompress(answer.body) == true_bytes(emulator, done)
    assert json.loads(gzip.decompress(emulator.call("POST", CHAT, chat_body("x")).body))["object"] == "chat.completion"
    assert [line["complete"] for line in emulator.events("downloaded")] == [True, True]


def test_uploads_and_synchronous_calls_can_have_another_status(emulate: Emulate) -> None:
    emulator = emulate(rules=[{"do": "status-201", "on": ["upload", "chat"]}, {"do": "status-202", "on": "messages"}])
    assert emulator.upload("other", chat_lines("other", 1)).status == 201
    assert emulator.call("POST", CHAT, chat_body("x")).status == 201
    assert emulator.call("POST", MESSAGES, {**chat_body("x"), "max_tokens": 5}).status == 202
    assert emulator.call("POST", CHAT, {**chat_body("x"), "model": "none"}).status == 404, "errors keep their status"


def test_a_refused_key_is_quoted_in_the_message(hostile: Emulator) -> None:
    message = create(hostile, "openai", "401-echo-key").json()["error"]["message"]
    assert hostile.token in message


def all_bytes(emulator: Emulator, dialect: str, name: str) -> bytes:
    """All bytes that the server sends on one connection."""
    if dialect == "anthropic":
        path, body = MESSAGE_BATCHES, json.dumps({"requests": message_requests(nonce(name, dialect), 3)}).encode()
    else:
        file = emulator.upload(nonce(name, dialect), chat_lines(nonce(name, dialect), 3)).json()["id"]
        wanted = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        path, body = "/openai/v1/batches", json.dumps(wanted).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{emulator.port}\r\nauthorization: Bearer {emulator.token}\r\n"
        f"anthropic-version: 2026-10-21\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", emulator.port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
    return received


@pytest.mark.parametrize(("name", "dialect"), cases("late"))
def test_the_server_acts_after_the_client_has_disconnected(hostile: Emulator, name: str, dialect: str) -> None:
    with pytest.raises(TimeoutError):
        create(hostile, dialect, name, timeout=0.3)
    assert not accepted(hostile, name, dialect)
    hostile.advance(31)
    for _ in range(200):
        if accepted(hostile, name, dialect):
            break
        time.sleep(0.01)
    assert len(accepted(hostile, name, dialect)) == 1


# Uploads.


@pytest.mark.parametrize(("name", "dialect"), cases("upload"))
def test_an_upload_has_a_fault(hostile: Emulator, name: str, dialect: str) -> None:
    lines = chat_lines(nonce(name, dialect), 3)
    if name == "upload-cut":
        with pytest.raises(http.client.RemoteDisconnected):
            hostile.upload(nonce(name, dialect), lines)
        return
    answer = hostile.upload(nonce(name, dialect), lines)
    if name == "upload-bytes":
        assert answer.json()["bytes"] < len("".join(json.dumps(line) + "\n" for line in lines))
    else:
        assert (name, answer.status) == ("file-quota", 400)


# Downloads.


def download_path(emulator: Emulator, batch: Json) -> str:
    if "results_url" in batch:
        return f"{MESSAGE_BATCHES}/{batch['id']}/results"
    return f"/openai/v1/files/{batch['output_file_id']}/content"


def true_bytes(emulator: Emulator, batch: Json) -> bytes:
    name = batch["id"] if "results_url" in batch else batch["output_file_id"]
    return (emulator.state / "outputs" / f"{name}.jsonl").read_bytes()


@pytest.mark.parametrize(("name", "dialect"), cases("download"))
def test_a_download_is_damaged(hostile: Emulator, name: str, dialect: str) -> None:
    batch = finished(hostile, dialect, name)
    DOWNLOADS[name](hostile, download_path(hostile, batch), true_bytes(hostile, batch))
    if name == "redirect-download":
        return
    assert not any(line["complete"] for line in hostile.events("downloaded") if line["file"] in batch.values()), (
        "the ledger records it as incomplete"
    )


def cut_with_error(emulator: Emulator, path: str, _whole: bytes) -> None:
    with pytest.raises(http.client.IncompleteRead):
        emulator.call("GET", path)


def cut_silently(holds: Callable[[bytes, bytes], bool]) -> Callable[[Emulator, str, bytes], None]:
    def check(emulator: Emulator, path: str, whole: bytes) -> None:
        answer = emulator.call("GET", path)
        assert answer.status == 200
        assert "content-length" not in answer.headers
        assert 0 < len(answer.body) < len(whole)
        assert holds(answer.body, whole)

    return check


def mid_character(body: bytes, _whole: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def badly_packed(name: str) -> Callable[[Emulator, str, bytes], None]:
    def check(emulator: Emulator, path: str, whole: bytes) -> None:
        answer = emulator.call("GET", path)
        assert answer.headers["content-encoding"] == ("br" if name == "brotli-fake" else "gzip")
        if name == "gzip-double":
            assert gzip.decompress(gzip.decompress(answer.body)) == whole
        elif name in ("gzip-fake", "brotli-fake"):
            assert answer.body == whole
        else:
            with pytest.raises((EOFError, gzip.BadGzipFile, zlib.error)):
                gzip.decompress(answer.body)

    return check


def bomb(emulator: Emulator, path: str, _whole: bytes) -> None:
    answer = emulator.call("GET", path)
    assert len(answer.body) < 3_000_000
    unpacker = zlib.decompressobj(wbits=31)
    size = 0
    data = answer.body
    while data and size < 1 << 27:
        size += len(unpacker.decompress(data, 1 << 24))
        data = unpacker.unconsumed_tail
    assert size == 1 << 27
    assert int.from_bytes(answer.body[-4:], "little") == 1 << 30


def trickle(emulator: Emulator, path: str, at_least: int, at_most: int, seconds: float = 0.8) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", emulator.port, timeout=seconds)
    connection.request(
        "GET", path, headers={"authorization": f"Bearer {emulator.token}", "anthropic-version": "2026-10-21"}
    )
    response = connection.getresponse()
    assert response.status == 200
    got = 0
    deadline = time.monotonic() + seconds
    try:
        while got < at_most and time.monotonic() < deadline:
            chunk = response.read1(1 << 16)
            if not chunk:
                break
            got += len(chunk)
    except TimeoutError:
        pass
    finally:
        connection.close()
    assert at_least <= got <= at_most + (1 << 16)


def ranged(name: str) -> Callable[[Emulator, str, bytes], None]:
    def check(emulator: Emulator, path: str, whole: bytes) -> None:
        answer = emulator.call("GET", path, headers={"range": "bytes=100-"})
        if name == "range-ignored":
            assert (answer.status, answer.body) == (200, whole)
        elif name == "range-416":
            assert answer.status == 416
        else:
            assert answer.status == 206
            assert answer.body != whole[100:]
            assert emulator.call("GET", path).body == whole

    return check


def redirected(emulator: Emulator, path: str, whole: bytes) -> None:
    answer = emulator.call("GET", path)
    assert answer.status == 302
    url = urlsplit(answer.headers["location"])
    assert (url.hostname, url.port) == ("localhost", emulator.port), "another host name"
    assert emulator.call("GET", url.path).status == 400, "a key is refused"
    assert without_key(emulator, url.path[:-1]).status == 403, "the signature must be right"
    signed = without_key(emulator, url.path)
    assert (signed.status, signed.body) == (200, whole)


def without_key(emulator: Emulator, path: str) -> Answer:
    connection = http.client.HTTPConnection("localhost", emulator.port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers.items()), response.read())
    finally:
        connection.close()


DOWNLOADS: dict[str, Callable[[Emulator, str, bytes], None]] = {
    "redirect-download": redirected,
    "cut-length": cut_with_error,
    "cut-chunked": cut_with_error,
    "huge-length": lambda emulator, path, whole: trickle(emulator, path, len(whole), len(whole)),
    "cut-line": cut_silently(lambda body, whole: body.endswith(b"\n") and whole.startswith(body)),
    "cut-mid-line": cut_silently(lambda body, whole: not body.endswith(b"\n") and whole.startswith(body)),
    "cut-utf8": cut_silently(mid_character),
    **{name: badly_packed(name) for name in ("gzip-cut", "gzip-crc", "gzip-fake", "gzip-double", "brotli-fake")},
    "gzip-bomb": bomb,
    "endless": lambda emulator, path, _whole: trickle(emulator, path, 5_000_000, 5_000_000, 20.0),
    "slow": lambda emulator, path, _whole: trickle(emulator, path, 1, 6),
    "stall": lambda emulator, path, _whole: trickle(emulator, path, 0, 0, 0.4),
    **{name: ranged(name) for name in ("range-ignored", "range-416", "range-wrong")},
}


# Batch objects.


@pytest.mark.parametrize(("name", "dialect"), cases("view"))
def test_a_batch_object_is_wrong(hostile: Emulator, name: str, dialect: str) -> None:
    answer = create(hostile, dialect, name, 8)
    batch = answer.json()["id"]
    path = f"{MESSAGE_BATCHES}/{batch}" if dialect == "anthropic" else f"/openai/v1/batches/{batch}"
    for _ in range(400):
        if [line for line in hostile.events("ended") if line["batch"] == batch]:
            break
        time.sleep(0.005)
    seen = hostile.call("GET", path)
    if name == "poll-404":
        assert seen.status == 404
        return
    shown = seen.json()
    status = shown["processing_status" if dialect == "anthropic" else "status"]
    results = [shown.get(field) for field in ("output_file_id", "results_url") if field in shown]
    counts = shown["request_counts"]
    end = "ended" if dialect == "anthropic" else "completed"
    match name:
        case "status-unknown":
            assert status == "reticulating"
        case "status-capitalised":
            assert status == end.capitalize()
        case "status-backwards":
            assert (status, results) == ("in_progress", [None])
        case "counts-zero":
            assert set(counts.values()) == {0}
        case "counts-contradict":
            assert counts.get("succeeded", counts.get("completed")) != 8
        case "output-null":
            assert (status, results) == (end, [None])
        case "output-empty":
            assert (status, results) == (end, [""])
        case "output-late":
            assert (status, results) == (end, [None])
            hostile.advance(61)
            assert hostile.batch(batch).get("output_file_id", hostile.batch(batch).get("results_url"))
        case "results-elsewhere":
            url = urlsplit(shown["results_url"])
            assert (url.hostname, url.port) == ("127.0.0.1", hostile.port)
            assert hostile.call("GET", url.path).body == true_bytes(hostile, shown)
            assert hostile.call("GET", download_path(hostile, shown)).status == 404
            assert hostile.call("GET", url.path, headers={"authorization": ""}).status == 401
        case "errors-data-null":
            assert (status, shown["errors"]) == (end, {"object": "list", "data": None})
        case "results-expired":
            assert hostile.call("GET", download_path(hostile, shown)).status == 404
        case _:
            raise AssertionError(f"no check for {name}")


# Listings. Their key is empty, so each rule needs its own emulator.


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS.values() if fault.kind == "list"])
def test_a_listing_is_wrong(emulate: Emulate, name: str) -> None:
    emulator = emulate(rules=[{"do": name}])
    for dialect, path, cursor in (
        ("openai", "/openai/v1/batches", "after"),
        ("anthropic", MESSAGE_BATCHES, "after_id"),
    ):
        made = [create(emulator, dialect, f"{dialect}{k}", 1).json()["id"] for k in range(4)][::-1]
        begun = time.monotonic()
        first = emulator.get(f"{path}?limit=2")
        took = time.monotonic() - begun
        second = emulator.call("GET", f"{path}?limit=2&{cursor}={made[1]}")
        rows = [row["id"] for row in first.get("data", [])]
        match name:
            case "list-lag":
                assert rows == []
                emulator.advance(601)
                assert [row["id"] for row in emulator.get(path)["data"]] == made
            case "list-stale":
                assert rows == made[:2]
                assert took > 0.69
            case "list-repeat":
                assert rows == made[:2]
                assert [row["id"] for row in second.json()["data"]] == rows
                assert second.json()["has_more"]
            case "list-duplicates":
                assert [row["id"] for row in second.json()["data"]] == [*made[:2], *made[2:], made[3]]
            case "list-empty-more":
                assert (rows, first["has_more"]) == ([], True)
            case "list-cursor-gone":
                assert rows == made[:2]
                assert second.status == 404
            case "list-oldest-first":
                assert rows == made[:1:-1]
                after = emulator.get(f"{path}?limit=2&{cursor}={made[2]}")
                assert [row["id"] for row in after["data"]] == made[1::-1]
            case "list-has-more-null":
                assert (rows, first["has_more"]) == (made[:2], True)
                assert second.json()["has_more"] is None
            case "list-envelope":
                assert [row["id"] for row in first["value"]] == made[:2]
            case _:
                raise AssertionError(f"no check for {name}")


# Faults in the life of a batch, selected when it is accepted.


@pytest.mark.parametrize(("name", "dialect"), cases("batch"))
def test_a_batch_has_a_life_cycle_fault(hostile: Emulator, name: str, dialect: str) -> None:
    answer = create(hostile, dialect, name, 8)
    assert answer.status == 200
    batch = answer.json()["id"]
    openai = dialect == "openai"
    match name:
        case "validation-failed" | "token-limit" | "token-limit-azure":
            failed = hostile.wait(batch)
            assert failed["status"] == "failed"
            error = failed["errors"]["data"][0]
            expected = ("invalid_json_line", 1) if name == "validation-failed" else ("token_limit_exceeded", None)
            assert (error["code"], error["line"]) == expected
            limits = {
                "token-limit": "Limit: 2,000,000 enqueued tokens.",
                "token-limit-azure": "limit of 30K",
            }
            assert limits.get(name, "") in error["message"]
            assert not hostile.billed(batch)
        case "expire-half" | "expire-none" | "cancelled-elsewhere":
            ended = hostile.wait(batch)
            lines = hostile.results(ended)
            good = [line for line in lines if line.get("response") or good_message(line)]
            assert len(good) == len(hostile.billed(batch)) == (0 if name == "expire-none" else 4)
            if name == "expire-none" and openai:
                assert ended["output_file_id"] is ended["error_file_id"] is None
            else:
                assert len(lines) == 8
            if openai:
                assert ended["status"] == ("cancelled" if name == "cancelled-elsewhere" else "expired")
        case "deleted-elsewhere":
            path = f"/openai/v1/batches/{batch}" if openai else f"{MESSAGE_BATCHES}/{batch}"
            assert hostile.call("GET", path).status == 404
            assert not hostile.billed(batch)
        case "stuck":
            hostile.wait(batch, "in_progress")
            hostile.advance(2 * 86_400)
            status = hostile.batch(batch).get("status", hostile.batch(batch).get("processing_status"))
            assert status == "in_progress"
        case "dup-accept":
            twins = [line["batch"] for line in accepted(hostile, name, dialect)]
            assert len(twins) == 2
            for twin in twins:
                hostile.wait(twin)
                assert len(hostile.billed(twin)) == 8, "both are billed"
        case "foreign":
            own = hostile.wait(batch)
            events = hostile.events("accepted")
            index = next(k for k, line in enumerate(events) if line["batch"] == batch)
            other_event = events[index - 1]
            assert other_event["owner"] == "someone else"
            other = hostile.wait(other_event["batch"])
            assert sum(other["request_counts"].values()) == sum(own["request_counts"].values())
            ids = {line["custom_id"] for line in hostile.results(other)}
            assert not ids & {line["custom_id"] for line in hostile.results(own)}
            bills = [line for line in hostile.events("billed") if line["batch"] == other_event["batch"]]
            assert {line["owner"] for line in bills} == {"someone else"}
        case _:
            raise AssertionError(f"no check for {name}")


def good_message(line: Json) -> bool:
    return "result" in line and line["result"]["type"] == "succeeded"


# Result lines.


def loads(line: bytes) -> Json | None:
    """A line parsed strictly; None if it is not JSON."""
    try:
        document: Json = json.loads(line.decode(), parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        return None
    return document


def text_of(line: Json) -> Any:
    if "response" in line:
        return line["response"]["body"]["choices"][0]["message"]["content"]
    return "".join(part.get("text", "") or "" for part in line["result"]["message"]["content"])


def answer_of(line: Json) -> Json:
    body: Json = line["response"]["body"] if "response" in line else line["result"]["message"]
    return body


UNREADABLE = {"line-malformed", "line-nan", "line-trailing", "line-invalid-utf8", "line-nested", "line-huge-integer"}


@pytest.mark.parametrize(("name", "dialect"), cases("line"))
def test_a_result_line_is_wrong(hostile: Emulator, name: str, dialect: str) -> None:
    batch = finished(hostile, dialect, name)
    raw = hostile.raw_results(batch)
    lines = raw.split(b"\n")
    assert lines.pop() == b""
    sent = [f"{nonce(name, dialect)}-{k}-0" for k in range(8)]
    events = [line for line in hostile.events("ended") if line["batch"] == batch["id"]]
    affected = events[0]["struck"][name]
    assert len(affected) == 2
    whole = {line["custom_id"]: line for line in map(loads, lines) if line and line.get("custom_id") in sent}
    untouched = set(sent) - set(affected)
    assert untouched <= set(whole), "the other lines are correct"
    unbilled = name in ("line-timeout", "line-policy", "line-credit", "line-500", "line-429", "line-error-200")
    assert len(hostile.billed(batch["id"])) == (6 if unbilled else 8)
    LINES[name](lines, whole, affected, dialect)


Check = Callable[[list[bytes], dict[str, Json], list[str], str], None]


def unreadable(lines: list[bytes], whole: dict[str, Json], affected: list[str], _dialect: str) -> None:
    assert len(lines) == 8
    assert not set(affected) & set(whole)


def same_text(mark: str) -> Check:
    def check(_lines: list[bytes], whole: dict[str, Json], affected: list[str], _dialect: str) -> None:
        assert all(mark in text_of(whole[custom_id]) for custom_id in affected)

    return check


def extra_lines(blank: int, total: int) -> Check:
    def check(lines: list[bytes], _whole: dict[str, Json], _affected: list[str], _dialect: str) -> None:
        assert sum(1 for line in lines if not line.strip()) == blank
        assert len(lines) == total

    return check


def ids_become(pattern: str | None) -> Check:
    def check(lines: list[bytes], whole: dict[str, Json], affected: list[str], _dialect: str) -> None:
        assert not set(affected) & set(whole)
        changed = [line["custom_id"] for line in map(loads, lines) if line and line["custom_id"] not in whole]
        assert len(changed) == 2
        assert all((custom_id is None) if pattern is None else pattern in custom_id for custom_id in changed)

    return check


def error_lines(code: str | int, kind: str) -> Check:
    def check(_lines: list[bytes], whole: dict[str, Json], affected: list[str], dialect: str) -> None:
        for custom_id in affected:
            if dialect == "anthropic":
                assert whole[custom_id]["result"]["error"]["error"]["type"] == kind
            elif isinstance(code, str):
                assert whole[custom_id]["error"]["code"] == code
            else:
                assert whole[custom_id]["response"]["status_code"] == code

    return check


def each(holds: Callable[[Json, str], bool]) -> Check:
    def check(_lines: list[bytes], whole: dict[str, Json], affected: list[str], dialect: str) -> None:
        assert all(holds(whole[custom_id], dialect) for custom_id in affected)

    return check


def swapped(_lines: list[bytes], whole: dict[str, Json], affected: list[str], _dialect: str) -> None:
    def digest(custom_id: str) -> str:
        return "A:" + sha256(f"Question {custom_id.split('-')[1]}".encode()).hexdigest()[:12]

    first, second = affected
    assert text_of(whole[first]) == digest(second)
    assert text_of(whole[second]) == digest(first)


def duplicates(different: bool) -> Check:
    def check(lines: list[bytes], _whole: dict[str, Json], affected: list[str], _dialect: str) -> None:
        assert len(lines) == 10
        for custom_id in affected:
            copies = {line for line in lines if f'"custom_id":"{custom_id}"'.encode() in line}
            assert len(copies) == (2 if different else 1)

    return check


def finish_of(line: Json) -> str:
    body = answer_of(line)
    return str(body["choices"][0]["finish_reason"] if "choices" in body else body["stop_reason"])


INPUT_TOKENS = {"openai": "prompt_tokens", "anthropic": "input_tokens"}  # at most 12 in these tests, if counted once
OUTPUT_TOKENS = {"openai": "completion_tokens", "anthropic": "output_tokens"}


def thoughts_of(line: Json) -> int:
    usage = answer_of(line)["usage"]
    if "completion_tokens_details" in usage:
        return int(usage["completion_tokens_details"]["reasoning_tokens"])
    return int(usage["output_tokens_details"]["thinking_tokens"])


LINES: dict[str, Check] = {
    **dict.fromkeys(UNREADABLE, unreadable),
    "line-bom": lambda lines, _w, _s, _d: _equal(sum(line.startswith(b"\xef\xbb\xbf{") for line in lines), 2),
    "line-blank": extra_lines(4, 12),
    "line-crlf": lambda lines, _w, _s, _d: _equal(sum(line.endswith(b"\r") for line in lines), 2),
    "line-surrogate": lambda lines, _w, _s, _d: _equal(sum(b"\\ud83d" in line for line in lines), 2),
    "line-u2028": same_text("\u2028"),
    "line-nul": same_text("\x00"),
    "line-ansi": same_text("\x1b["),
    "line-duplicate": duplicates(different=False),
    "line-conflict": duplicates(different=True),
    "line-duplicate-key": lambda lines, _w, _s, _d: _equal(sum(line.count(b'"custom_id"') == 2 for line in lines), 2),
    "line-missing": lambda lines, whole, affected, _d: _equal((len(lines), set(affected) & set(whole)), (6, set())),
    "line-unknown-id": ids_become("nobody"),
    "line-foreign-id": ids_become("f0re1gn"),
    "line-out-of-range": ids_become("-4294967295-0"),
    "line-null-id": ids_become(None),
    "line-swapped": swapped,
    "line-both": lambda lines, _w, _s, _d: _equal(
        (len(lines), sum(b"request_timeout" in line for line in lines)), (10, 2)
    ),
    "line-refusal": each(
        lambda line, dialect: (
            answer_of(line)["choices"][0]["message"]["refusal"] is not None
            if dialect == "openai"
            else finish_of(line) == "refusal"
        )
    ),
    "line-content-filter": each(lambda line, _: finish_of(line) in ("content_filter", "refusal")),
    "line-empty": each(lambda line, _: text_of(line) == ""),
    "line-text-null": each(
        lambda line, dialect: (text_of(line) if dialect == "openai" else answer_of(line)["content"][0]["text"]) is None
    ),
    "line-thoughts-only": each(
        lambda line, dialect: (
            text_of(line) == ""
            and finish_of(line) in ("length", "max_tokens")
            and thoughts_of(line) == answer_of(line)["usage"][OUTPUT_TOKENS[dialect]]
        )
    ),
    "line-reasoning-only": each(
        lambda line, _: not text_of(line) and finish_of(line) in ("stop", "end_turn") and thoughts_of(line) == 13
    ),
    "line-finish-error": each(lambda line, _: finish_of(line) == "error" and text_of(line).startswith("A:")),
    "line-error-200": each(
        lambda line, _: line["response"]["status_code"] == 200 and answer_of(line)["error"]["code"] == 502
    ),
    "line-top-logprobs-null": each(
        lambda line, _: answer_of(line)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] is None
    ),
    "line-usage-null": each(lambda line, _: answer_of(line)["usage"] is None),
    "line-usage-nulls": each(
        lambda line, _: not any(isinstance(value, int) for value in answer_of(line)["usage"].values())
    ),
    "line-usage-optional-null": each(
        lambda line, dialect: (
            answer_of(line)["usage"]["completion_tokens_details"] is None
            if dialect == "openai"
            else answer_of(line)["usage"]["cache_read_input_tokens"] is None
        )
    ),
    "line-tool-call": each(lambda line, _: finish_of(line) in ("tool_calls", "tool_use")),
    "line-max-tokens": each(lambda line, _: finish_of(line) in ("length", "max_tokens")),
    "line-endless": each(lambda line, _: text_of(line).count(" and so on") > 1),
    "line-input-twice": each(lambda line, dialect: answer_of(line)["usage"][INPUT_TOKENS[dialect]] >= 16),
    "line-other-model": each(lambda line, _: answer_of(line)["model"] != "echo"),
    "line-huge": each(lambda line, _: len(text_of(line)) == 2_000_000),
    "line-choices-many": each(lambda line, _: len(answer_of(line).get("choices") or answer_of(line)["content"]) == 3),
    "line-choices-none": each(lambda line, _: answer_of(line).get("choices", answer_of(line).get("content")) == []),
    "line-content-list": each(
        lambda line, dialect: (
            isinstance(text_of(line), list) if dialect == "openai" else isinstance(answer_of(line)["content"], str)
        )
    ),
    "line-thinking": each(
        lambda line, dialect: (
            "reasoning_content" in answer_of(line)["choices"][0]["message"]
            if dialect == "openai"
            else answer_of(line)["content"][0]["type"] == "thinking"
        )
    ),
    "line-renamed": each(
        lambda line, dialect: (
            "contents" in (answer_of(line)["choices"][0]["message"] if dialect == "openai" else answer_of(line))
        )
    ),
    "line-wrapped": lambda lines, _w, _s, _d: _equal(sum(line.startswith(b'{"version":2') for line in lines), 2),
    "line-number-text": each(
        lambda line, _: any(isinstance(value, str) and value.isdigit() for value in answer_of(line)["usage"].values())
    ),
    "line-usage-absent": each(lambda line, _: "usage" not in answer_of(line)),
    "line-usage-negative": each(
        lambda line, _: min(v for v in answer_of(line)["usage"].values() if isinstance(v, int)) < 0
    ),
    "line-usage-huge": each(
        lambda line, _: max(v for v in answer_of(line)["usage"].values() if isinstance(v, int)) == 10**12
    ),
    "line-status-0": each(lambda line, _: line["response"]["status_code"] == 0),
    "line-timeout": error_lines("request_timeout", "timeout_error"),
    "line-policy": error_lines(400, "invalid_request_error"),
    "line-credit": error_lines(429, "invalid_request_error"),
    "line-500": error_lines(500, "api_error"),
    "line-429": error_lines(429, "rate_limit_error"),
}


def _equal(got: object, wanted: object) -> None:
    assert got == wanted


# The same faults in replies to synchronous calls, if the rule names the call.


def digest_of(name: str, dialect: str) -> str:
    """The key of a synchronous call whose prompt is the name of a fault."""
    return sha256((f"None {name}" if dialect == "openai" else name).encode()).hexdigest()[:12]


@pytest.fixture(scope="module")
def misleading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that damages the answer to a prompt with the fault that the prompt names."""
    rules = [
        {"do": name, "on": "chat" if dialect == "openai" else "messages", "key": digest_of(name, dialect)}
        for name, dialect in cases("line")
        if FAULTS[name].also
    ]
    emulator = Emulator(tmp_path_factory.mktemp("misleading"), rules=rules)
    yield emulator
    emulator.stop()


@pytest.mark.parametrize(("name", "dialect"), [case for case in cases("line") if FAULTS[case[0]].also])
def test_an_answer_to_a_synchronous_call_is_wrong(misleading: Emulator, name: str, dialect: str) -> None:
    more: Json = {"logprobs": True, "top_logprobs": 2} if "logprobs" in name else {}
    body = {**chat_body(name), **more}
    answer = misleading.call("POST", *((CHAT, body) if dialect == "openai" else (MESSAGES, {**body, "max_tokens": 20})))
    shown = answer.json()
    line = (
        {"response": {"status_code": answer.status, "body": shown}}
        if dialect == "openai"
        else {"result": {"type": "succeeded", "message": shown}}
    )
    LINES[name]([], {"id": line}, ["id"], dialect)


def test_a_line_fault_leaves_synchronous_calls_alone_unless_named(emulate: Emulate) -> None:
    emulator = emulate(rules=[{"do": "line-empty"}])
    assert emulator.call("POST", CHAT, chat_body("x")).json()["choices"][0]["message"]["content"]


def test_answers_become_empty_from_the_second_batch_on(emulate: Emulate) -> None:
    emulator = emulate(rules=[{"do": "line-empty", "p": 0.5, "since": 2}])
    empty = []
    for name in ("one", "two", "three"):
        lines = emulator.results(emulator.wait(emulator.submit(name, 40)))
        empty.append(sum(text_of(line) == "" for line in lines))
    assert empty[0] == 0
    assert all(8 <= count <= 32 for count in empty[1:])


def test_synchronous_answers_become_empty_from_the_third_call_on(emulate: Emulate) -> None:
    emulator = emulate(rules=[{"do": "line-empty", "on": "chat", "since": 3}])
    answers = [emulator.call("POST", CHAT, chat_body(f"Prompt {k}")).json() for k in range(4)]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert [bool(text) for text in texts] == [True, True, False, False]
