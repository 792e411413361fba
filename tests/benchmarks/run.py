"""run: HiringAn through the emulator from start to end with three kills, and how long each restart takes."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from batchbench import emulator
from tests.benchmarks.compile import BATCHBENCH, compiled
from tests.benchmarks.measure import Cost, Result, compared, cpu_of, peak, peak_of
from tests.benchmarks.measure import run as measured

PATIENCE = 3600.0


def command(home: Path, items: int) -> list[str]:
    """The command line of `batchbench run` for a number of items."""
    words = ["run", "hiring_an", "--model", "sim:random", "--sample-k", str(items), "--json", "--quiet"]
    return [*BATCHBENCH, *words, "--home", str(home)]


class Client:
    """One start of `batchbench run`, watched through its journal."""

    def __init__(self, home: Path, items: int) -> None:
        self._journals = home / "cache"
        self._before = self._size()
        self.started = time.monotonic()
        self._process = subprocess.Popen(command(home, items), stdout=subprocess.DEVNULL)

    def at_work(self) -> Cost:
        """Wait for its first journal line; returns the seconds."""
        while self._size() == self._before and self._process.poll() is None:
            time.sleep(0.005)
        return Cost(seconds=round(time.monotonic() - self.started, 3), peak_mb=peak_of(self._process.pid))

    def killed_at(self, stored: int) -> Cost:
        """Kill it after it has stored a number of batches; returns its cost up to then."""
        deadline = time.monotonic() + PATIENCE
        while self._stored() < stored and time.monotonic() < deadline:
            time.sleep(0.05)
        self._process.send_signal(signal.SIGKILL)
        return self.ended()

    def ended(self) -> Cost:
        """Wait for its end; returns its cost."""
        _, _, usage = os.wait4(self._process.pid, 0)
        return Cost(
            seconds=round(time.monotonic() - self.started, 3),
            cpu_seconds=round(usage.ru_utime + usage.ru_stime, 2),
            peak_mb=peak(usage),
        )

    def _journal(self) -> bytes:
        return b"".join(path.read_bytes() for path in self._journals.glob("hiring_an-*/*/journal"))

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._journals.glob("hiring_an-*/*/journal"))

    def _stored(self) -> int:
        return self._journal().count(b'"stored"')


def run(home: Path, *, full: bool) -> list[Result]:
    """Run all items, or 500,000: killed at the start, in the middle and near the end, then run with nothing to do."""
    _, _, prompts = compiled(home)
    items = prompts if full else 500_000
    batches = -(-items // 50_000)
    clients, results = [], []
    for where, until in {"nothing": 1, "one batch": batches // 2, "half": batches - 1}.items():
        client = Client(home, items)
        waited = client.at_work()
        results.append(compared("resume", f"back at work, {where} stored before", items, waited))
        clients.append(client.killed_at(until))
    last = Client(home, items)
    results.append(compared("resume", "back at work, all but the last stored before", items, last.at_work()))
    clients.append(last.ended())
    server = emulator.find(home / "cache" / "emulator")
    assert server is not None
    served = Cost(seconds=0.0, cpu_seconds=round(cpu_of(server.pid), 2), peak_mb=peak_of(server.pid))
    again, output = measured(command(home, items))
    assert json.loads(output)[0]["answered"] == items
    status, _ = measured([*BATCHBENCH, "status", "--home", str(home), "--json"])
    whole = Cost(
        seconds=round(sum(client.seconds for client in clients), 1),
        cpu_seconds=round(sum(client.cpu_seconds or 0.0 for client in clients), 2),
        peak_mb=max(client.peak_mb or 0.0 for client in clients) or None,
    )
    os.kill(server.pid, signal.SIGTERM)
    return [
        compared("run", "from end to end, killed three times: the client", items, whole),
        compared("run", "from end to end, killed three times: the emulator", items, served),
        *results,
        compared("resume", "the same command with nothing left to do", items, again),
        compared("resume", "status", items, status),
    ]
