"""Faulty servers, networks and certificates."""

import re
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, DIALECTS, Scene, ended, wait_until
from tests.emulator.driver import TOKEN
from tests.faults.client_patches import DRAW, hurry, run_first, sleep_through
from tests.faults.proxy import Call, Proxy
from tests.faults.rows import row

TIME = r"\d\d:\d\d:\d\d"
K = 24


@pytest.mark.full
@row(50)
def test_an_unreachable_provider_is_named_with_the_time(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=3")
    client = scene.start(k=20, size=10)
    wait_until(lambda: len(scene.accepted()) == 2)
    scene.emulator.stop()
    assert client.stderr is not None
    line = next(line for line in client.stderr if line.startswith("no answer from"))
    assert re.match(rf"no answer from 127.0.0.1 since {TIME} \(cannot connect to .*\); next try at {TIME}", line)
    scene.emulator.words = ["--port", str(scene.emulator.port)]
    scene.emulator.start()
    done = ended(client)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 20, 20), done
    scene.audit(status=True)


@pytest.mark.full
@row(50)
@pytest.mark.parametrize("dialect", ["anthropic", pytest.param("openai", marks=pytest.mark.full)])
def test_a_run_stops_when_the_provider_stays_unreachable_and_owes_nothing(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    sleep_through(scene, 120)
    scene.emulator.stop()
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["missing"], done.report["reserved_usd"]) == (1, K, 0), done
    assert "cannot connect to 127.0.0.1" in done.stderr
    scene.end_faults()
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"], scene.billed()) == (0, K, K), done
    scene.audit(status=True)


@row(56)
@pytest.mark.full
def test_a_rate_limit_that_lasts_for_hours_is_waited_for_and_explained(stage: Stage) -> None:
    # 300 calls with half a minute between them, on average.
    scene = stage("openai", rules=[{"do": "429-bare", "on": "poll", "first": 300}])
    sleep_through(scene, 1000)
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"], scene.billed()) == (0, K, K), done
    assert done.report["seconds"] > 3600
    told = rf"127.0.0.1 has taken no more calls since {TIME} \(.*429 rate_limit_exceeded.*\); next try at {TIME}"
    assert len(re.findall(told, done.stderr)) > 200
    scene.audit(status=True)


@row(56)
@pytest.mark.full
def test_long_refusals_of_creates_are_waited_for_and_explained(stage: Stage) -> None:
    scene = stage("anthropic", rules=[{"do": "429-ramp-limit", "on": "create", "key": "^0"}])  # for three seconds
    run_first(scene, DRAW.replace('"08192a3b4c5d6e7f"', '"0" * 300'))
    sleep_through(scene, 1000)
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"], scene.billed()) == (0, K, K), done
    assert done.report["seconds"] > 900
    assert re.search(rf"accept batches again, which it has not since {TIME} \(.*429.*\); next check at", done.stderr)
    scene.audit(status=True)


UNPAID = {
    "openai": [
        "429-insufficient-quota",
        "429-credit-balance",
        "429-org-spend-limit",
        "429-project-spend-limit",
        "429-usage-limit",
        "429-hard-limit",
        "402-billing",
    ],
    "anthropic": ["429-spend-cap", "400-usage-limits", "402-billing"],
}


@pytest.mark.full
@row(57)
@pytest.mark.parametrize("dialect", [pytest.param("openai", marks=pytest.mark.full), "anthropic"])
def test_an_account_without_credit_is_reported_at_once_and_running_batches_are_kept(stage: Stage, dialect: str) -> None:
    faults = UNPAID[dialect]
    scene = stage(dialect, rules=[{"do": name, "on": "poll", "nth": [turn]} for turn, name in enumerate(faults, 1)])
    for _ in faults:
        done = scene.run(k=K, size=K)
        assert done.code == 77, done
        assert "refuses the key, the billing or the model" in done.stderr
        assert len(scene.journal("intent")) == 1
        scene.audit(unfinished=True)
    done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"], scene.billed()) == (0, K, K), done
    scene.audit(status=True)


@row(57)
@pytest.mark.full
def test_an_account_that_runs_out_of_credit_still_gets_its_paid_answers(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=1")
    refused = False

    def broke(call: Call, connection: socket.socket) -> bool:
        nonlocal refused
        if call.method == "POST" and call.path.endswith("/files") and len(scene.accepted()) >= 1:
            refused = True
            body = b'{"error":{"message":"You exceeded your quota.","code":"insufficient_quota"}}'
            connection.sendall(b"HTTP/1.1 429 no\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        return refused and call.method == "POST"

    with Proxy(scene, broke):
        done = scene.run(k=K, size=4)
        assert done.code == 77, done
        assert refused
        assert done.report["answered"] == scene.billed() == 4 * len(scene.accepted()) < K
        refused = False
        scene.audit(status=True)


@row(59)
@pytest.mark.parametrize("dialect", BOTH)
def test_an_incomplete_create_is_searched_for_and_then_repeated(stage: Stage, dialect: str) -> None:
    scene = stage(dialect, rules=[{"do": "400-not-json", "on": "create"}])
    client = scene.start(k=K, size=K)
    wait_until(lambda: scene.emulator.events("fault"))
    scene.end_faults()
    done = ended(client)
    assert (done.code, done.report["answered"], scene.billed()) == (0, K, K), done
    assert [len(scene.journal(kind)) for kind in ("intent", "creating", "void", "created")] == [2, 2, 1, 1]
    scene.audit(status=True)


@row(61)
@pytest.mark.full
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_batch_that_is_too_large_for_a_proxy_is_split(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    page = b"<html><h1>413 Request Entity Too Large</h1></html>"

    def small(call: Call, connection: socket.socket) -> bool:
        if len(call.body) > 6000:
            connection.sendall(b"HTTP/1.1 413 no\r\ncontent-length: %d\r\n\r\n" % len(page) + page)
        return len(call.body) > 6000

    with Proxy(scene, small):
        done = scene.run(k=48, size=48)
    assert (done.code, done.report["answered"], scene.billed()) == (0, 48, 48), done
    assert len(scene.accepted()) > 4
    scene.audit(status=True)


# -- replies -----------------------------------------------------------------------------------------------


@row(65)
@pytest.mark.full
def test_an_endless_reply_is_not_read_into_memory(stage: Stage) -> None:
    scene = stage("openai")
    struck: list[Call] = []

    def endless(call: Call, connection: socket.socket) -> bool:
        if call.method == "POST" or "/batches/" not in call.path or len(struck) == 2:
            return False
        struck.append(call)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            connection.sendall(b" " * (1 << 20))

    with Proxy(scene, endless):
        client = scene.start(k=K, size=K)
        most = 0
        while client.poll() is None:
            most = max(most, memory(client.pid))
            time.sleep(0.05)
        done = ended(client)
    assert (done.code, done.report["answered"], len(struck)) == (0, K, 2), done
    assert most < 400 << 20
    scene.audit(status=True)


def memory(pid: int) -> int:
    """Peak memory of a process in bytes."""
    try:
        told = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", told)
    return int(found[1]) << 10 if found else 0


@row(66)
@pytest.mark.full
@pytest.mark.parametrize("part", ["body", "head"])
def test_a_reply_that_trickles_is_aborted(stage: Stage, part: str) -> None:
    scene = stage("openai")
    struck: list[Call] = []
    hurry(scene, 100)

    def trickle(call: Call, connection: socket.socket) -> bool:
        if call.method == "POST" or len(struck) == 2:
            return False
        struck.append(call)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + (b"content-length: 9999\r\n\r\n" if part == "body" else b"x: "))
        while True:
            connection.sendall(b" ")
            time.sleep(0.1)  # ten seconds of client time

    with Proxy(scene, trickle):
        done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"], len(struck)) == (0, K, 2), done
    scene.audit(status=True)


REDIRECTS = {
    "upload": "redirect-307",
    "create": "redirect-308",
    "poll": "redirect-302",
    "list": "redirect-301",
}


@row(68)
@pytest.mark.full
def test_only_downloads_follow_redirects(stage: Stage) -> None:
    visits: list[Call] = []

    def visited(call: Call, _: Any) -> bool:
        visits.append(call)
        return False

    with ExitStack() as stack:
        elsewhere = stage("openai")
        stack.enter_context(Proxy(elsewhere, visited))
        target = elsewhere.emulator.openai_url
        for call, fault in REDIRECTS.items():
            scene = stage("openai", rules=[{"do": fault, "on": call, "value": f"{target}/files"}])
            done = scene.run(k=K, size=K)  # one batch: with several, the client may use a listing
            assert done.code in (1, 4), done
            assert "a redirect to 127.0.0.1, which is not followed" in done.stderr
            assert len(scene.accepted()) == (call not in ("upload", "create", "list"))  # a run begins with a list
            scene.audit(unfinished=True)
            scene.close()
    assert not visits


# -- certificates ------------------------------------------------------------------------------------------

# Makes the client trust one more authority, as the machine's owner could.
TRUST = """
import ssl
ssl.SSLContext.load_default_certs = lambda self, *_: self.load_verify_locations({authority!r})
"""


class Authority:
    """Makes certificates, good and bad."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        self._make("req", "-x509", *self._key("authority"), "-out", "authority.pem", "-subj", "/CN=tests", *usage)

    def context(self, *, host: str = "IP:127.0.0.1", days: int = 2, trusted: bool = True) -> ssl.SSLContext:
        name = ("-subj", "/CN=server", "-addext", f"subjectAltName={host}")
        if trusted:
            self._make("req", "-new", *self._key("server"), "-out", "server.csr", *name)
            signed = ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", str(days))
            self._make("x509", "-req", "-in", "server.csr", *signed, "-copy_extensions", "copy", "-out", "server.pem")
        else:
            self._make("req", "-x509", *self._key("server"), "-out", "server.pem", *name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        return context

    def _key(self, name: str) -> tuple[str, ...]:
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")

    def _make(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)


def trusting(scene: Scene) -> Authority:
    authority = Authority(scene.folder / "authority")
    run_first(scene, TRUST.format(authority=str(authority.folder / "authority.pem")))
    return authority


@row(69)
@pytest.mark.parametrize("dialect", BOTH)
def test_a_server_with_a_certificate_is_asked(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    with Proxy(scene, tls=trusting(scene).context()):
        done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    scene.audit(status=True)


@row(69)
@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"trusted": False}, "self-signed certificate"),
        pytest.param({"host": "DNS:elsewhere.example"}, "IP address mismatch", marks=pytest.mark.full),
        pytest.param({"days": -1}, "certificate has expired", marks=pytest.mark.full),
    ],
)
def test_a_server_without_a_valid_certificate_gets_nothing(
    stage: Stage, dialect: str, wrong: dict[str, object], says: str
) -> None:
    scene = stage(dialect)
    with Proxy(scene, tls=trusting(scene).context(**wrong)) as server:  # type: ignore[arg-type]
        done = scene.run(k=K, size=K)
    assert (done.code, done.report["missing"], done.report["reserved_usd"]) == (1, K, 0), done
    assert says in done.stderr
    assert not server.calls
    scene.audit(status=True)


@row(69)
@pytest.mark.full
@pytest.mark.parametrize("server", ["old", "plain"])
def test_a_server_with_old_or_no_tls_gets_nothing(stage: Stage, server: str) -> None:
    scene = stage("openai")
    sleep_through(scene, 240)
    if server == "old":
        tls = Authority(scene.folder / "authority").context()
        tls.set_ciphers("DEFAULT@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            tls.minimum_version, tls.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    else:
        tls = None
    with Proxy(scene, tls=tls) as between:
        scene.emulator.openai_url = scene.emulator.openai_url.replace("http:", "https:")
        done = scene.run(k=K, size=K)
    assert (done.code, done.report["missing"], scene.accepted()) == (1, K, []), done
    assert "SSL" in done.stderr
    assert not any(TOKEN in str(call) for call in between.calls)
    scene.audit(status=True)


# -- connections -------------------------------------------------------------------------------------------


@row(71)
@pytest.mark.parametrize("dialect", BOTH)
def test_a_create_never_uses_an_idle_connection(stage: Stage, dialect: str) -> None:
    scene = stage(dialect)
    # A server that closes an idle connection at the moment of its next use.
    with Proxy(scene, lambda call, _: call.turn > 0) as server:
        done = scene.run(k=K, size=4)
    assert (done.code, done.report["answered"], scene.billed()) == (0, K, K), done
    creates = server.asked("POST", "/batches")
    assert len(creates) == len(scene.accepted()) > 1
    assert {call.turn for call in creates} == {0}
    assert any(call.turn > 0 for call in server.calls)
    assert not scene.journal("void")
    scene.audit(status=True)


@row(73)
def test_the_second_address_is_used_when_the_first_does_not_answer(stage: Stage) -> None:
    """A host name with two addresses; one of them never answers."""
    scene = stage("openai")
    with ExitStack() as stack:
        hole = stack.enter_context(socket.socket(socket.AF_INET6))
        hole.bind(("::1", scene.emulator.port))
        hole.listen(0)
        for _ in range(3):  # its accept queue is full, so new connections get no answer
            filler = stack.enter_context(socket.socket(socket.AF_INET6))
            filler.setblocking(False)
            filler.connect_ex(("::1", scene.emulator.port))
        run_first(scene, BOTH_ADDRESSES)
        scene.emulator.openai_url = scene.emulator.openai_url.replace("127.0.0.1", "localhost")
        done = scene.run(k=K, size=K)
    assert (done.code, done.report["answered"]) == (0, K), done
    scene.audit(status=True)


# Not every machine has both addresses in its /etc/hosts.
BOTH_ADDRESSES = """
import socket
look_up = socket.getaddrinfo


def both(host, *arguments, **options):
    if host != "localhost":
        return look_up(host, *arguments, **options)
    return [*look_up("::1", *arguments, **options), *look_up("127.0.0.1", *arguments, **options)]


socket.getaddrinfo = both
"""
