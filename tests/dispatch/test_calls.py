"""The client is killed at its system calls."""

import os
import shutil
import signal
import subprocess

import pytest

from tests.dispatch.conftest import Stage
from tests.dispatch.scene import DIALECTS, VARIABLES
from tests.emulator.driver import TOKEN

pytestmark = [
    pytest.mark.storm,
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace"),
]
CALLS = ("fdatasync", "fsync", "rename", "sendto", "write", "ftruncate", "flock")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_killed_at_a_system_call_pays_once(stage: Stage, dialect: str) -> None:
    """Each start has new rows to ask, and is killed when one of its threads makes the n-th call of a kind."""
    scene = stage(dialect)
    rows = died = 0
    for call in CALLS:
        for n in (1, 2, 3, 5, 8, 13, 21):
            rows += 12
            death = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}"]
            done = subprocess.run(
                ["strace", "-f", "-o", os.devnull, *death, *scene.line(k=rows, size=5)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, VARIABLES[dialect]: TOKEN},
            )
            assert done.returncode in (0, -signal.SIGKILL), (call, n, done)
            died += done.returncode != 0
    assert died > len(CALLS)
    last = scene.run(k=rows, size=100)
    assert (last.code, last.report["answered"], scene.billed()) == (0, rows, rows), last
    scene.audit(status=True)
