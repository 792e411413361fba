"""Access: loopback only, the right host name, the token."""

import socket
import subprocess

import pytest

from tests.emulator.driver import Emulator

ROUTES = ["/openai/v1/batches", "/openai/v1/files", "/openai/v1/models", "/anthropic/v1/messages/batches"]


@pytest.mark.parametrize("path", [*ROUTES, "/__emu/stats", "/__emu/ledger", "/__emu/clock", "/nothing"])
@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer "])
def test_a_call_without_the_token_gets_a_401_in_the_dialect(emulator: Emulator, path: str, header: str) -> None:
    answer = emulator.call("GET", path, headers={"authorization": header})
    assert answer.status == 401
    error = answer.json()["error"]
    if path.startswith("/anthropic"):
        assert error["type"] == "authentication_error"
        assert answer.json()["type"] == "error"
        assert answer.json()["request_id"] == answer.headers["request-id"]
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:80", "[::1]"])
def test_another_host_name_is_refused_even_with_the_token(emulator: Emulator, host: str) -> None:
    assert emulator.call("GET", "/openai/v1/batches", headers={"host": host}).status == 403


def test_both_loopback_names_are_accepted(emulator: Emulator) -> None:
    for host in (f"127.0.0.1:{emulator.port}", f"localhost:{emulator.port}"):
        assert emulator.call("GET", "/openai/v1/batches", headers={"host": host}).status == 200


def test_the_emulator_listens_only_on_loopback(emulator: Emulator) -> None:
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    port = f":{emulator.port:04X}"
    listening = [row[1] for row in rows if row[1].endswith(port) and row[3] == "0A"]
    assert listening == [f"0100007F{port}"]
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    for address in [address for address in addresses if "." in address]:
        with pytest.raises((ConnectionRefusedError, TimeoutError)):
            socket.create_connection((address, emulator.port), timeout=2)


def test_unknown_paths_get_an_error_in_the_dialect(emulator: Emulator) -> None:
    assert emulator.call("GET", "/openai/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert emulator.call("GET", "/anthropic/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert emulator.call("PUT", "/openai/v1/batches").status == 405


def test_no_reply_has_a_cors_header(emulator: Emulator) -> None:
    answer = emulator.call("OPTIONS", "/openai/v1/batches", headers={"origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_large_body_is_refused(emulator: Emulator) -> None:
    answer = emulator.call("POST", "/openai/v1/batches", b" " * (1 << 20) + b"{}")
    assert answer.status == 413


def test_only_the_user_can_read_the_state_folder(emulator: Emulator) -> None:
    emulator.submit("private", 1)
    assert emulator.state.stat().st_mode & 0o077 == 0
    for path in emulator.state.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert emulator.token not in emulator.ledger.read_text()
