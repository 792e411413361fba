"""Only hosts that the user names are called, never a host that a reply, a file or a redirect names."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench import emulator
from batchbench.core.keys import Secret
from batchbench.errors import BatchbenchError, UsageError
from batchbench.providers import load_provider
from batchbench.providers.target import LOOPBACK, check_encrypted, checked_url, is_loopback
from batchbench.runs import events, journal
from batchbench.runs.folder import RunFile, read_journal
from batchbench.transport.client import Client
from batchbench.transport.replies import Unsent
from tests.conftest import Run
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, Scene
from tests.emulator.driver import TOKEN
from tests.security.witness import Witness


class Other(BaseHTTPRequestHandler):
    """A server that the program must not call."""

    calls: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.calls.append(f"{self.path} {dict(self.headers)}")
        self.send_response(200)
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - the name that the standard library looks for

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def listening(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Another server on this machine; its port."""
    Other.calls.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("call", ["create", pytest.param("poll", marks=pytest.mark.full)])
def test_a_redirect_is_not_followed(stage: Stage, dialect: str, call: str) -> None:
    with listening() as port:
        rules = [{"do": f"redirect-{status}", "on": call, "value": f"http://127.0.0.1:{port}/", "nth": [nth]}
                 for nth, status in enumerate((307, 302, 308, 301, 303), 1)]  # fmt: skip
        scene = stage(dialect, rules=rules)
        ran = scene.run(k=4, size=4)
    assert ran.code != 0
    assert "redirect to 127.0.0.1" in ran.stderr
    assert Other.calls == []


@pytest.mark.parametrize("dialect", BOTH)
def test_a_redirected_download_is_followed_without_the_key(stage: Stage, dialect: str) -> None:
    call = {"openai": "content", "anthropic": "results"}[dialect]
    with listening() as port:
        rules = [{"do": "redirect-302", "on": call, "value": f"http://127.0.0.1:{port}/", "nth": [1]}]
        scene = stage(dialect, rules=rules)
        ran = scene.run(k=4, size=4)
        assert len(Other.calls) == 1
        assert TOKEN not in Other.calls[0]
    assert (ran.code, ran.report["answered"]) == (0, 4), ran
    scene.audit(status=True)


def test_a_reply_does_not_choose_the_download_address(stage: Stage) -> None:
    told = {
        "id": "msgbatch_1",
        "processing_status": "ended",
        "created_at": "2026-01-01T00:00:00Z",
        "results_url": "https://evil.example/results",
    }
    remote = load_provider("anthropic").read(json.dumps(told).encode())
    assert remote.parts == [("results", "/v1/messages/batches/msgbatch_1/results")]


LOOKALIKES = [
    "https://api.openai.com@evil.example/v1", "https://api.openai.com:443@evil.example/", "https://:x@evil.example/",
    "http://api.openai.com/v1", "http://127.0.0.1.evil.example/", "http://localhost.evil.example/", "http://0.0.0.0/",
    "http://[::ffff:10.0.0.1]/", "http://2130706433/", "http://0x7f.1/", "https://api.openai.com\u3002evil.example/",
    "https://api\uff0eopenai\uff0ecom/", "https://\u0430pi.openai.com/", "https://api.openai.com\\@evil.example/",
    "https://api.openai.com/v1?x=1", "https://api.openai.com/v1#x", "https://a b/", "https://x/\r\nHost: evil.example",
    "https://x\t/", "https:///v1", "https://[::1", "https://a\u2100b.example/", "ftp://127.0.0.1/", "http://127.0.0.1:99999/",
]  # fmt: skip


@pytest.mark.parametrize("url", LOOKALIKES)
def test_an_address_that_only_looks_like_a_provider_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="base URL"):
        check_encrypted(checked_url(url), None, "OPENAI_API_KEY")


@given(st.text(max_size=40) | st.text(max_size=30).map(lambda text: f"https://{text}"))
def test_any_address_is_refused_or_safe(url: str) -> None:
    try:
        taken = checked_url(url)
        check_encrypted(taken, None, "OPENAI_API_KEY")
    except UsageError:
        return
    assert taken.startswith("https://") or is_loopback(taken)
    assert "@" not in taken.partition("//")[2].partition("/")[0]


def test_only_https_or_this_machine_is_called() -> None:
    for host in LOOPBACK:
        url = checked_url(f"http://[{host}]:1" if ":" in host else f"http://{host}:1")
        check_encrypted(url, None, "OPENAI_API_KEY")
        with pytest.raises(UsageError, match="--allow-http"):
            check_encrypted(url, "http://proxy.example:3128", "OPENAI_API_KEY")
    for name in ("openai", "anthropic"):
        assert load_provider(name).base_url.startswith("https://")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for this machine."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    words += [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(path),
        "-out",
        str(path),
    ]
    key, cert = path.with_suffix(".key"), path.with_suffix(".crt")
    words[-3:] = [str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    path.write_bytes(key.read_bytes() + cert.read_bytes())
    return path


needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="makes certificates with openssl")


def context(certificate: Path) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(certificate)
    return found


@needs_openssl
def test_a_server_with_an_untrusted_certificate_gets_no_key(certificate: Path) -> None:
    async def act(port: int) -> None:
        api = Client(load_provider("openai"), f"https://localhost:{port}", Secret("sk-canary"), give_up_after=0.0)
        async with api.running():
            with pytest.raises(Unsent):
                await api.once("/batches", b"{}")
            with pytest.raises(BatchbenchError):
                await api.get("/batches")

    with listening(context(certificate)) as port:
        anyio.run(act, port)
    assert Other.calls == []


CALL = """
import anyio, sys
from batchbench.providers import load_provider
from batchbench.transport.client import Client
from batchbench.core.keys import Secret
async def act():
    api = Client(load_provider("openai"), sys.argv[1], Secret("sk-canary"), give_up_after=0.0)
    async with api.running():
        await api.get("/batches")
anyio.run(act)
"""


@needs_openssl
@pytest.mark.parametrize(("host", "code"), [("localhost", 0), ("127.0.0.1", 1)])
def test_a_private_authority_is_trusted_through_the_usual_variable_but_not_for_another_name(
    certificate: Path, host: str, code: int
) -> None:
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate.with_suffix(".crt"))}
    with listening(context(certificate)) as port:
        command = [sys.executable, "-c", CALL, f"https://{host}:{port}"]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stderr
    assert len(Other.calls) == 1 - code


@needs_openssl
def test_old_tls_is_refused(certificate: Path) -> None:
    old = context(certificate)
    with pytest.warns(DeprecationWarning, match="TLS"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with listening(old) as port:
        command = [sys.executable, "-c", CALL, f"https://localhost:{port}"]
        environment = {**os.environ, "SSL_CERT_FILE": str(certificate.with_suffix(".crt"))}
        assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 1
    assert Other.calls == []


# -- only this machine -------------------------------------------------------------------------------------

SIM = ("--set", "data=sample", "--sample-k", "5", "--model", "sim:random")


@pytest.mark.full
def test_simulated_models_call_no_other_host(tmp_path: Path, batchbench: Run) -> None:
    witness = Witness(tmp_path / "witness")
    environment = {**os.environ, **witness.environment}
    for words in (["run", "gest", *SIM], ["analyze", "gest", *SIM[:2], *SIM[4:]], ["report"], ["status"], ["audit"]):
        ran = batchbench(*words, "--home", tmp_path, env=environment)
        assert ran.returncode == 0, ran.stderr
    running = emulator.find(tmp_path / "cache/emulator")
    assert running
    os.kill(running.pid, 15)
    assert {address[0] for address in witness.saw("connect")} == {"127.0.0.1"}
    assert {*witness.saw("resolve")} <= {"127.0.0.1", "localhost"}


@pytest.mark.skipif(
    subprocess.run("unshare -rn ip link set lo up", shell=True, capture_output=True, check=False).returncode != 0,  # noqa: S602
    reason="needs unshare and ip",
)
def test_everything_works_without_any_network_but_loopback(tmp_path: Path) -> None:
    line = f"ip link set lo up; exec {sys.executable} -m batchbench run gest {' '.join(SIM)} --home {tmp_path}"
    ran = subprocess.run(["unshare", "-rn", "sh", "-c", line], capture_output=True, text=True, check=False)
    os.kill(json.loads((tmp_path / "cache/emulator/endpoint.json").read_bytes())["pid"], 15)
    assert ran.returncode == 0, ran.stderr


def test_importing_everything_opens_no_connection() -> None:
    code = (
        "import sys; sys.addaudithook(lambda e, a: sys.exit(e) if e.startswith('socket.') else None)\n"
        "import batchbench.app.run, batchbench.library, batchbench.report, batchbench.emulator.server.server"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


# -- folders of others -------------------------------------------------------------------------------------


def retold(scene: Scene, url: str) -> None:
    """The run's folder, as another person might pass it on."""
    path = scene.run_folder / "run.json"
    about = msgspec.json.decode(path.read_bytes(), type=RunFile)
    target = msgspec.structs.replace(about.target, base_url=url)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(about, target=target)))
    history, told, crc = path.with_name("journal"), b"", 0
    for seq, event in enumerate(read_journal(history).events):
        if isinstance(event, events.Opened):
            event = msgspec.structs.replace(event, target=target.slug)
        line, crc = journal.line(event, seq, crc)
        told += line
    history.write_bytes(told)


@pytest.mark.full
def test_a_folder_does_not_choose_where_a_key_is_sent(stage: Stage) -> None:
    scene = stage("openai", "--delay", "processing=60")
    scene.run("--detach", k=4, size=4)
    bought = scene.accepted()
    with listening() as port:
        theirs = f"http://127.0.0.1:{port}"
        retold(scene, theirs)
        audited = scene.program("audit", "--remote")
        cancelled = scene.program("cancel", "hiring_an", "--model", "openai:echo")
        again = scene.run(k=4, size=4)
        named = scene.program("audit", "--remote", "--base-url", theirs)
        assert [call for call in Other.calls if TOKEN not in call] == []
        assert len(Other.calls) > 0  # once the user has named it
        assert "--base-url" in audited.stdout
        assert (audited.code, cancelled.code, again.code) == (65, 2, 65), (audited, cancelled, again)
        assert named.code != 0
    assert f"if your key may be sent there, pass --base-url {theirs}" in cancelled.stderr
    assert scene.accepted() == bought


def test_a_folder_does_not_choose_the_emulator(tmp_path: Path, batchbench: Run) -> None:
    with listening() as port:
        state = tmp_path / "cache/emulator"
        state.mkdir(parents=True)
        for host in (f"localhost:{port}", f"127.0.0.1.evil.example:{port}", f"u@127.0.0.1:{port}", "[::1"):
            said = {"openai": f"http://{host}/v1", "anthropic": f"http://{host}", "token": "t", "ledger": "l", "pid": 1}
            (state / "endpoint.json").write_text(json.dumps(said))
            assert emulator.find(state) is None
    assert Other.calls == []


def test_the_tests_themselves_cannot_call_another_machine() -> None:
    with pytest.raises(RuntimeError, match="tests call only this machine"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(RuntimeError, match="tests call only this machine"):
        socket.getaddrinfo("example.org", 80)
