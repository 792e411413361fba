"""Files are private to the user and stay in the home; a folder of another person is not trusted."""

import contextlib
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from batchbench import cli
from batchbench.core.keys import Secret
from batchbench.core.store import Store, check_owner
from batchbench.errors import BatchbenchError, DataError
from batchbench.providers.openai import PROVIDER
from batchbench.providers.target import Target
from batchbench.report.overview import anchor
from batchbench.runs import results
from batchbench.runs.folder import run_folders
from batchbench.transport.client import Client
from batchbench.transport.replies import LostReply
from batchbench.transport.single_calls import CallSpool
from tests import zstd
from tests.conftest import Run
from tests.dispatch.conftest import Stage
from tests.dispatch.scene import Scene, ended
from tests.security.witness import Witness
from tests.test_client import against

SIM = ("gest", "--set", "data=sample", "--model", "sim:random")
MIB = 1 << 20


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose emulator is stopped afterwards."""
    home = tmp_path / "home"
    yield home
    with contextlib.suppress(OSError, KeyError):
        os.kill(json.loads((home / "cache/emulator/endpoint.json").read_bytes())["pid"], 15)


# -- owner and place of files ------------------------------------------------------------------------------


def test_files_are_private_under_any_umask_and_all_in_the_home(home: Path, tmp_path: Path) -> None:
    witness = Witness(tmp_path / "witness")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, **witness.environment, "TMPDIR": str(temporary), "HOME": str(temporary)}
    program = f"umask 000; exec {sys.executable} -m batchbench"
    for words in (["run", *SIM, "--sample-k", "5"], ["analyze", *SIM, "--replicates", "20"], ["report"]):
        line = ["sh", "-c", f'{program} "$@"', "sh", *words, "--home", str(home)]
        ran = subprocess.run(line, capture_output=True, text=True, check=False, env=environment, cwd=temporary)
        assert ran.returncode == 0, ran.stderr
    for path in [home, *home.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert list(temporary.iterdir()) == []
    written = {path for path in witness.saw("write") if isinstance(path, str)}
    assert len(written) > 20
    assert {path for path in written if not Path(path).is_relative_to(home)} <= {"/dev/null"}


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_no_system_call_creates_a_file_outside_the_home(home: Path, tmp_path: Path) -> None:
    log = tmp_path / "strace"
    trace = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=openat,creat,mkdir,mkdirat,rename,renameat,renameat2"]
    program = [sys.executable, "-m", "batchbench", "run", *SIM, "--home", str(home), "--sample-k"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    # The first run starts the emulator: strace would wait for the end of every process that the program starts.
    for line in ([*program, "2"], [*trace, *program, "5"]):
        ran = subprocess.run(line, capture_output=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    made = [line for line in log.read_text().splitlines() if "O_CREAT" in line or re.search(r" (mk|ren|creat)", line)]
    assert made
    elsewhere = [line for line in made if str(home) not in line and "ENOENT" not in line and "EEXIST" not in line]
    assert elsewhere == []


def test_a_folder_that_others_can_write_to_is_refused(stage: Stage) -> None:
    scene = stage("openai")
    assert scene.run(k=4, size=4).code == 0
    scene.run_folder.chmod(0o777)
    refused = scene.run(k=8, size=4)
    assert (refused.code, "every user can write to" in refused.stderr) == (65, True)
    assert len(scene.accepted()) == 1
    scene.run_folder.chmod(0o700)
    assert scene.run(k=8, size=4).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_folder_of_another_user_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter pytest's own folders
        check_owner(Path(folder))
        os.seteuid(65_534)
        try:
            with pytest.raises(DataError, match="another user"):
                check_owner(Path(folder))
        finally:
            os.seteuid(0)


# -- folders of other users -----------------------------------------------------------------------------------


@pytest.mark.full
def test_no_link_in_a_run_is_followed(stage: Stage, tmp_path: Path) -> None:
    scene = stage("openai")
    assert scene.run(k=4, size=4).code == 0
    for number, name in enumerate(["lock", "journal", "run.json", "raw", "answers/x.parquet"]):
        outside, place = tmp_path / f"outside{number}", scene.run_folder / name
        if place.exists():
            place.rename(outside)
        else:
            outside.write_text("precious")
        before = _contents(outside)
        place.symlink_to(outside)
        refused = scene.run(k=8, size=4)
        assert (refused.code, "is a link" in refused.stderr) == (65, True), refused
        with pytest.raises(DataError, match="is a link"):
            run_folders(Store(scene.home))
        assert _contents(outside) == before
        place.unlink()
        outside.rename(place)
        if name.startswith("answers"):
            place.unlink()
    assert len(scene.accepted()) == 1
    assert scene.run(k=8, size=4).code == 0


def _contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file): file.read_bytes() for file in files}


def test_an_emulators_log_that_is_a_link_is_not_written_to(home: Path, tmp_path: Path, batchbench: Run) -> None:
    state = home / "cache/emulator"
    state.mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    (state / "emulator.log").symlink_to(tmp_path / "precious")
    ran = batchbench("run", *SIM, "--sample-k", "2", "--home", home)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.full
def test_the_budget_of_a_foreign_journal_does_not_count(stage: Stage) -> None:
    """A journal of another person raises neither the budget nor what is left of it."""
    scene = stage("openai")
    assert scene.run("--budget", "0.0001", k=60, size=4).code == 3
    bought = sum(event["n"] for event in scene.accepted())
    again = scene.run("--budget", "0.0001", k=60, size=4)
    assert again.code == 3
    assert sum(event["n"] for event in scene.accepted()) == bought


# -- names -------------------------------------------------------------------------------------------------

NAMES = ["..", ".", "/etc/passwd", "a/../../b", "a\0b", "x" * 300, "\u202egnp.exe", "CON", "nul.", "-rf", "~", "a\nb", " ", "*", "%2e%2e"]  # fmt: skip  # noqa: E501


@given(st.sampled_from(NAMES) | st.text(max_size=300))
def test_the_folder_of_any_model_name_is_a_direct_child(name: str) -> None:
    store = Store(Path("/home/user"))
    slug = Target(provider="openai", model=name, max_tokens=1, system=name, base_url=name).slug
    path = store.cache / "gest-00000000" / slug
    assert Path(os.path.normpath(path)).parent == store.cache / "gest-00000000"
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,80}", slug)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", anchor(name))


@given(st.sampled_from(NAMES) | st.text(max_size=100))
def test_the_files_of_any_batch_name_are_in_the_spool(name: str) -> None:
    folder = Path("/home/user/spool")
    spool = CallSpool(folder, Store(folder), Client(PROVIDER, "", Secret("")))
    for path in (spool._input(name), spool._results(name)):
        assert Path(os.path.normpath(path)).parent == folder
        assert len(path.name.encode()) < 255


def test_an_archive_is_refused_as_results_and_as_data(tmp_path: Path, batchbench: Run) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as tar:
        about = tarfile.TarInfo("../../evil")
        tar.addfile(about, io.BytesIO())
    for words in (["import", archive], ["data", "add", "names", archive], ["data", "add", "names", archive, "--trust"]):
        ran = batchbench(*words, "--home", tmp_path)
        assert (ran.returncode, len(ran.stderr.splitlines())) == (65, 1)
    assert not (tmp_path.parent / "evil").exists()


# -- bombs -------------------------------------------------------------------------------------------------


def peak(scene: Scene, *words: str) -> tuple[int, int]:
    """The exit code of a client, and its peak memory in MiB."""
    client = scene.start(*words, k=4, size=4)
    most = 0
    while client.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            most = max(most, int(Path(f"/proc/{client.pid}/status").read_text().split("VmHWM:")[1].split()[0]))
        time.sleep(0.05)
    return ended(client).code, most // 1024


@pytest.mark.parametrize(
    "fault", ["endless", *(pytest.param(name, marks=pytest.mark.full) for name in ("gzip-bomb", "huge-length"))]
)
def test_a_decompression_bomb_takes_neither_memory_nor_disk(stage: Stage, fault: str) -> None:
    scene = stage("openai", rules=[{"do": fault, "first": 1}])
    code, most = peak(scene)
    assert code == 0
    assert most < 400
    assert sum(path.stat().st_size for path in scene.home.rglob("*") if path.is_file()) < 20 * MIB
    assert not list(scene.home.rglob(".scratch*"))


def test_an_endless_reply_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchbench.transport.client.MAX_REPLY", MIB)
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b" " * 65_536)
                sent += 65_536
        return response

    async def act(api: Client, _: list[str]) -> None:
        api._give_up_after = 0.0
        with pytest.raises(BatchbenchError, match="cannot be right"):
            await api.get("/x")
        with pytest.raises(LostReply, match="cannot be right"):
            await api.once("/x", b"{}")

    anyio.run(against, endless, act)
    assert sent < 64 * MIB


def test_a_stored_decompression_bomb_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "x.zst"
    with zstd.open(path, "wb") as file:
        for _ in range(256):
            file.write(bytes(MIB))
        file.write(b"\nlast")
    assert path.stat().st_size < MIB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lengths = [len(line) for line in results.lines(path)]
    assert lengths == [results.MAX_LINE + 1, 4]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_a_pickle_in_the_cache_is_ignored(home: Path) -> None:
    (home / "cache/gest-00000000/x").mkdir(parents=True)
    (home / "cache/gest-00000000/x/run.pkl").write_bytes(b"cos\nsystem\n(S'touch evil'\ntR.")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["status", "--json", "--home", str(home)]) == 0
    assert json.loads(out.getvalue()) == []
