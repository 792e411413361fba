"""A key is in memory and in the headers of calls to its own provider, and nowhere else."""

import base64
import copy
import io
import json
import logging
import os
import pickle
import re
import socket
import ssl
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import aiohttp
import anyio
import anyio.lowlevel
import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from batchbench.app.contact import Contact
from batchbench.core import keys
from batchbench.core.keys import Secret
from batchbench.errors import BatchbenchError
from batchbench.providers import load_provider
from batchbench.providers.target import Target
from batchbench.transport.client import Client
from batchbench.transport.network_errors import SENT
from batchbench.transport.replies import LostReply, Unsent
from tests.conftest import Run
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import BOTH, ended, wait_until
from tests.security.conftest import armed, found_in
from tests.security.witness import Witness

KEY = "sk-CANARY-0123456789abcdef"
QUOTED = "the key refused and quoted"
FAULTS = {
    QUOTED: [{"do": "401-echo-key", "on": "create"}],
    "replies lost": [{"do": "reset-after", "on": "create", "p": 0.5}, {"do": "500-before", "on": "poll", "p": 0.3}],
    "replies that are no HTTP": [{"do": "bad-status-line-before", "on": "poll", "p": 0.4}],
}


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("fault", [QUOTED, *(pytest.param(name, marks=pytest.mark.full) for name in [*FAULTS][1:])])
def test_the_key_is_on_no_disk_and_in_no_output_after_any_fault(
    stage: Stage, canary: str, tmp_path: Path, fault: str, dialect: str
) -> None:
    scene = stage(dialect, rules=FAULTS[fault])
    armed(scene, canary, tmp_path)
    client = scene.start("--pilot", "auto", k=30, size=10)
    line = Path(f"/proc/{client.pid}/cmdline").read_bytes()
    ran = ended(client)
    assert ran.code == (77 if fault == QUOTED else 0), ran
    seen = [ran.stdout, ran.stderr, line.decode(), *(scene.program(*words).stdout for words in (["status"], ["audit"]))]
    assert canary.lower() not in "".join(seen).lower()
    assert not found_in(canary, scene.home, *(tmp_path / name for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")))
    if fault == QUOTED:
        assert "[key]" in ran.stderr


def test_no_child_process_gets_a_key(tmp_path: Path, batchbench: Run) -> None:
    witness = Witness(tmp_path / "witness")
    words = ["run", "gest", "--set", "data=sample", "--sample-k", "2", "--model", "sim:random", "--home", tmp_path]
    environment = {**os.environ, **witness.environment, "OPENAI_API_KEY": KEY, "OTHER_API_KEY": KEY}
    ran = batchbench(*words, env=environment)
    assert ran.returncode == 0, ran.stderr
    ((command, variables),) = witness.saw("start")
    assert "batchbench emulate" in " ".join(command)
    assert "PATH" in variables
    assert not [name for name in variables if name.endswith("_API_KEY")]
    running = json.loads((tmp_path / "cache/emulator/endpoint.json").read_bytes())
    try:
        assert KEY.encode() not in Path(f"/proc/{running['pid']}/environ").read_bytes()
    finally:
        os.kill(running["pid"], 15)


def test_no_option_takes_a_key(batchbench: Run) -> None:
    commands = re.findall(r"^    (\w+) ", batchbench("--help").stdout, re.MULTILINE)
    assert "run" in commands
    helps = [batchbench(command, "--help").stdout for command in ("run", "sweep", "audit", "cancel", "export")]
    assert not re.search(r"--\S*(api|key|token\b|secret|insecure|verify)", "".join(helps))


# -- in objects --------------------------------------------------------------------------------------------


def shown(thing: object) -> str:
    """A value, printed in every way that programs print values."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logger = logging.Logger("shown")
    logger.addHandler(handler)
    logger.warning("%s %r", thing, thing)
    return f"{thing} {thing!r} {thing!a} {log.getvalue()}"


def test_a_key_cannot_be_printed_copied_or_stored() -> None:
    secret = Secret(KEY)
    target = Target(provider="openai", model="m", max_tokens=1)
    provider = load_provider("openai")
    contact = Contact(target=target, provider=provider, limits=provider.limits, base_url="x", key=secret, local=True)
    for thing in (secret, [secret], {"key": secret}, contact, Client(provider, "https://x", secret)):
        assert KEY not in shown(thing)
    for store in (pickle.dumps, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            store(secret)
    assert not isinstance(secret, str)
    assert secret.reveal() == KEY


def rendered(error: BaseException) -> str:
    """An error with its causes as a traceback, alone and inside exception groups."""
    group = ExceptionGroup("several", [ExceptionGroup("inner", [error])]) if isinstance(error, Exception) else error
    return "".join([*traceback.format_exception(error), *traceback.format_exception(group), str(error)])


async def no_sleep(_: float) -> None:
    pass


def test_no_error_of_the_client_shows_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: type[BaseException] = OSError
    sent: list[str] = []

    async def request(session: aiohttp.ClientSession, method: str, url: str, **options: object) -> object:
        sent.append(url)
        raise made(kind, options["headers"])  # type: ignore[arg-type]

    monkeypatch.setattr(aiohttp.ClientSession, "_request", request)

    async def act() -> None:
        nonlocal kind
        api = Client(load_provider("openai"), "https://127.0.0.1:9", Secret(KEY), sleep=no_sleep, give_up_after=0.0)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: api.get("/x"),
            lambda: api.post("/x"),
            lambda: api.once("/x", b""),
            lambda: api.upload("/x", {}, "f", [b""]),
            lambda: api.retry(lambda: api.send_once("/x", [b""]), 2, Unsent("the first try")),
            lambda: api.download("/x", lambda _: None, 10),
            lambda: api.read_start("/x"),
        ]
        async with api.running():
            for kind in SENT:
                for call in calls:
                    sent.clear()
                    with pytest.raises((BatchbenchError, LostReply, Unsent, kind)) as error:
                        await call()
                    assert sent, "the call failed before it sent anything"
                    assert KEY not in rendered(error.value), kind

    anyio.run(act)


def made(kind: type[BaseException], headers: dict[str, str]) -> BaseException:
    """An error as the HTTP client raises it, with the request and its headers inside."""
    from multidict import CIMultiDict, CIMultiDictProxy
    from yarl import URL

    url = URL("https://127.0.0.1:9/x")
    about = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict(headers)), url)
    connection = aiohttp.client_reqrep.ConnectionKey("127.0.0.1", 9, True, True, None, None, None)
    cause = OSError(111, "refused")
    certificate = ssl.SSLCertVerificationError(1, "bad")
    attempts: list[tuple[object, ...]] = [
        *([(about, ())] if issubclass(kind, aiohttp.ClientResponseError) else []),
        *(
            [(connection, cause), (connection, certificate), ("/x", connection, cause)]
            if issubclass(kind, OSError)
            else []
        ),
        (b"a", b"b", "127.0.0.1", 9),
        (url,),
        ("words",),
    ]
    for arguments in attempts:
        try:
            error = kind(*arguments)
        except TypeError:
            continue
        if about in arguments:
            assert KEY in repr(error)  # the reason why our code never prints it that way
        return error
    raise AssertionError(kind)


def test_a_remembered_attempt_does_not_show_the_key() -> None:
    async def act() -> BaseException:
        api = Client(load_provider("openai"), "http://127.0.0.1:9", Secret(KEY), give_up_after=0.0)
        async with api.running():
            try:
                await api.get("/x")
            except Exception as error:  # noqa: BLE001
                return error
        raise AssertionError("nothing was raised")

    error = anyio.run(act)
    assert not isinstance(error, tenacity.RetryError)  # it would contain `last_attempt`
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert KEY not in rendered(error)


# -- hiding ------------------------------------------------------------------------------------------------

SPELLINGS = [
    KEY, KEY.upper(), KEY.lower(), quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode(),
    base64.b64encode(f"Bearer {KEY}".encode()).decode(), f"Bearer {KEY}", f"?key={KEY}&x=1", f'"{KEY}"',
]  # fmt: skip


@given(st.text(max_size=20), st.sampled_from(SPELLINGS), st.text(max_size=20))
def test_a_key_is_hidden_at_any_place_and_in_any_spelling(before: str, spelt: str, after: str) -> None:
    hidden = Secret(KEY).hide(f"{before}{spelt}{after}")
    assert KEY.lower() not in hidden.lower()
    assert base64.b64encode(KEY.encode()).decode()[:-4] not in hidden


def test_all_output_hides_keys(tmp_path: Path, batchbench: Run) -> None:
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    for words in (["explain", KEY], ["probes", KEY, "--json"], ["estimate", "gest", "--model", f"openai{KEY}:x"]):
        ran = batchbench(*words, "--home", tmp_path, env=environment)
        assert ran.returncode == 2
        assert KEY not in ran.stdout + ran.stderr
        assert "[key]" in ran.stderr


def test_a_key_spelt_with_escapes_in_an_error_is_hidden_too() -> None:
    from tests.test_client import against, answering

    async def act(api: Client, _: list[str]) -> None:
        api._key = Secret(KEY)
        with pytest.raises(Exception, match=r"\[key\]") as error:
            await api.get("/x")
        assert KEY not in rendered(error.value)

    escaped = KEY.replace("-", "\\u002d")
    anyio.run(against, answering(401, f'{{"error": {{"message": "wrong: {escaped}", "type": "{escaped}"}}}}'), act)


# -- what is sent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", BOTH)
def test_prompts_and_nothing_about_the_user_leave_the_machine(stage: Stage, dialect: str, tmp_path: Path) -> None:
    scene = stage(dialect)
    scene.environment |= {"USER": "canary-user", "LOGNAME": "canary-user", "EMAIL": "canary@example.org"}
    ran = scene.run(k=20, size=10)
    assert ran.code == 0, ran
    kept = b"".join(path.read_bytes() for path in scene.emulator.state.rglob("*") if path.is_file())
    assert b"Question" in kept or b"custom_id" in kept
    for private in ("canary-user", "canary@example.org", str(scene.home), str(Path.cwd())):
        assert private.encode() not in kept
    assert not re.search(rb"\b%b\b" % re.escape(socket.gethostname().encode()), kept)  # a short name occurs in words


def test_children_of_a_fetch_get_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    code = "import os; print('ANTHROPIC_API_KEY' in os.environ, 'PATH' in os.environ)"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=keys.environment())
    assert ran.stdout.split() == ["False", "True"]


def test_no_core_file_is_written(stage: Stage, tmp_path: Path) -> None:
    scene = stage("openai", "--delay", "processing=60")
    client = scene.start(k=10, size=10)
    wait_until(lambda: scene.emulator.events("accepted"))
    limits = Path(f"/proc/{client.pid}/limits").read_text()
    assert re.search(r"Max core file size\s+0\s", limits)
    os.kill(client.pid, 6)
    client.wait(timeout=20)
    assert client.returncode == -6
    assert not [*Path.cwd().glob("core*"), *scene.home.glob("core*")]
