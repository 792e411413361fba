"""The power fails at any moment of a compile and a run, and the program recovers from every possible disk state."""

import json
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from batchbench.compile.manifest import checked_shards, read_manifest
from batchbench.core.store import Store
from batchbench.providers.target import Target
from batchbench.runs.audit import audit
from batchbench.runs.events import Created
from batchbench.runs.folder import open_run, read_journal, read_run
from batchbench.runs.journal import line as journal_line
from tests.dispatch.scene import BOTH, PROBE, VARIABLES, Json, Scene
from tests.emulator.driver import TOKEN
from tests.faults.power import Disk, Operation, laid_out, operations, traced, unread
from tests.faults.rows import row

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")
ROWS, SIZE = 30, 10
# Deaths that leave unsynced data to the next start: half a line (written below), the last file under its final
# name, and the last line, complete. The last start has nothing left to do.
DEATHS = (("before-created:2", ()), ("segment-renamed:3", ()), ("", ("fdatasync:when=1",)), ("", ()))
APPEND = "import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND), bytes.fromhex(sys.argv[2]))"


class Left(NamedTuple):
    """One state that a power cut can leave, and what the program had acknowledged by then."""

    state: dict[str, bytes | None]
    compiled: bool  # the compile had ended
    acknowledged: bytes  # of the journal
    when: tuple[float, float]  # times of the last operation before the cut and of the next one


class Recording(NamedTuple):
    """A compile and a run with deaths, and every state that power cuts can leave of them."""

    scene: Scene
    left: list[Left]
    name: str  # of the manifest
    target: Target


@pytest.fixture(scope="module", params=BOTH)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """Made once, with a fixed port: the provider's address is part of the run."""
    folder = tmp_path_factory.mktemp("power")
    (folder / "nothing").mkdir()
    scene = Scene(folder / "scene", folder / "nothing", request.param, "--port", str(fixed_port()))
    (scene.home / "manifests").rmdir()
    environment = {**os.environ, VARIABLES[scene.dialect]: TOKEN}
    compiling = [sys.executable, "-m", "batchbench", "compile", *PROBE, "--home", str(scene.home)]
    assert traced(compiling, folder / "trace", environment).returncode == 0
    traces = [operations(folder / "trace")]
    for place, kill in DEATHS:
        told = {**environment, "BATCHBENCH_CRASH": place}
        done = traced(scene.line(k=ROWS, size=SIZE), folder / "trace", told, *kill)
        assert (done.returncode == 0) == (not place and not kill), done
        traces.append(operations(folder / "trace"))
        if place == "before-created:2":
            journal = scene.run_folder / "journal"
            writing = [sys.executable, "-c", APPEND, str(journal), half_a_line(journal).hex()]
            assert traced(writing, folder / "trace", environment).returncode == 0
            traces.append(operations(folder / "trace"))
    scene.audit()
    scene.emulator.stop()
    about = read_run(scene.run_folder / "run.json")
    yield Recording(scene, everything_left(scene.home, traces), about.manifest, about.target)
    scene.close()


def half_a_line(path: Path) -> bytes:
    """What a process leaves that is killed inside the write() of the next line."""
    content = read_journal(path)
    created = Created(at=time.time(), nonce="0123456789", remote="batch_0123456789")
    line, _ = journal_line(created, len(content.events), content.crc)
    return line[: len(line) // 2]


def fixed_port() -> int:
    """A free port below the ephemeral ones."""
    for port in random.SystemRandom().sample(range(15_000, 30_000), 50):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")


def everything_left(home: Path, traces: list[list[Operation]]) -> list[Left]:
    """Every state once, at the last moment at which it is possible, when most had been acknowledged."""
    disk, chance, found = Disk(home), random.Random(1), dict[bytes, Left]()
    for turn, trace in enumerate(traces):
        disk.restart()
        for one, following in zip(trace, [*trace[1:], trace[-1]], strict=True):
            if not disk.apply(one):
                continue
            for state in disk.states(chance):
                kept = disk.find(r"cache/.*/journal")
                found[digest(state)] = Left(state, turn > 0, kept.synced if kept else b"", (one.at, following.at))
    for state in disk.states(chance):  # the program has reported its end
        found[digest(state)] = Left(state, True, kept.now if kept else b"", (one.at, one.at))
    assert digest({path: (home / path).read_bytes() if content is not None else None for path, content in state.items()}) in found  # fmt: skip  # noqa: E501
    return list(found.values())


def digest(state: dict[str, bytes | None]) -> bytes:
    """Equal for states that readers cannot distinguish."""
    whole = sha256()
    for path, content in sorted(state.items()):
        seen = b"" if content is None or unread(path.rpartition("/")[2]) else content
        whole.update(f"{path} {len(seen)} ".encode() + sha256(seen).digest())
    return whole.digest()


@row(25, 26)
def test_nothing_acknowledged_is_lost_in_a_power_cut(recording: Recording, tmp_path: Path) -> None:
    for number, left in enumerate(recording.left):
        home = tmp_path / str(number)
        laid_out(left.state, home)
        reopened(Store(home), recording, left)
        shutil.rmtree(home)


def reopened(store: Store, recording: Recording, left: Left) -> None:
    """Read the state as the next start does: everything acknowledged is there, and nothing is damaged."""
    folder = store.manifests / recording.name
    manifest = read_manifest(folder)
    assert manifest or not left.compiled
    if manifest is None:
        assert not left.acknowledged
        return
    checked_shards(folder, manifest)
    run = store.cache / recording.name / recording.target.slug
    assert not left.acknowledged or (run / "journal").read_bytes().startswith(left.acknowledged)
    with open_run(store, folder, manifest, recording.target, time.time()):
        pass
    assert (run / "journal").read_bytes().startswith(left.acknowledged)
    assert audit(run, folder, manifest).findings == []


@pytest.mark.full
@row(25, 26)
@pytest.mark.parametrize("count", [pytest.param(25, marks=[pytest.mark.full, pytest.mark.timeout(1800)]), 6])
@pytest.mark.parametrize("seed", [5])
def test_nothing_is_bought_twice_after_a_power_cut(recording: Recording, tmp_path: Path, count: int, seed: int) -> None:
    """The provider has received the calls up to then, and possibly those before the next write."""
    chance = random.Random(seed)
    (tmp_path / "nothing").mkdir()
    for number, left in enumerate(chance.sample(recording.left, count)):
        folder = tmp_path / str(number)
        provider_as_of(chance.uniform(*left.when), recording.scene, folder / "state")
        scene = Scene(folder, tmp_path / "nothing", recording.scene.dialect, *recording.scene.emulator.words)
        try:
            shutil.rmtree(scene.home)
            laid_out(left.state, scene.home)
            done = scene.run("--adopt", k=ROWS, size=SIZE, timeout=120)
            assert (done.code, done.report["answered"], scene.billed()) == (0, ROWS, ROWS), (number, done)
            scene.audit(status=True)
        finally:
            scene.close()
        shutil.rmtree(folder)


def provider_as_of(moment: float, scene: Scene, state: Path) -> None:
    """The provider's state at a moment; the power cut does not affect it."""
    shutil.copytree(scene.emulator.state, state)
    ledger = state / scene.emulator.ledger.name
    lines = ledger.read_bytes().splitlines(keepends=True)
    events: list[Json] = [json.loads(line) for line in lines]
    ledger.write_bytes(b"".join(line for line, event in zip(lines, events, strict=True) if event["wall"] <= moment))
