"""A home that an older version made: this version reads it without loss, finishes its runs and pays for nothing twice.

`make.py` says how a home is made. Each stays as it is: a new version adds a home and changes none.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.auditor.invariants import audit, load
from tests.conftest import Run
from tests.homes.make import EXPORTED, FINISHED, MISSING, STOPPED, UNHEARD, UNSENT, Emulator, asked

Json = dict[str, Any]
HERE = Path(__file__).parent
COMMITS = sorted(path.name.partition(".")[0] for path in HERE.glob("*.tar.xz"))


class Home:
    """A copy of the home that a commit made, and what that commit printed about it."""

    def __init__(self, folder: Path, commit: str, run: Run) -> None:
        self.folder, self._run = folder, run
        self.recorded: Json = json.loads((HERE / f"{commit}.json").read_bytes())
        with tarfile.open(HERE / f"{commit}.tar.xz") as archive:
            archive.extractall(folder, filter="tar")

    def json(self, *words: str, code: int = 0) -> Any:
        """What a command prints, with paths relative to the home."""
        ran = self._run(*words, "--json", "--home", self.folder)
        assert ran.returncode == code, ran
        return json.loads(ran.stdout.replace(f"{self.folder}/", ""))

    def status(self, run: tuple[str, str]) -> Json:
        return next(entry for entry in self.json("status") if is_about(entry, run))

    def prove(self) -> None:
        """The auditor's verdict on every run, each with its own part of the ledger."""
        ledger = self.folder / "cache/emulator/ledger.jsonl"
        events = [json.loads(line) for line in ledger.read_text().splitlines()]
        accepted = [event for event in events if event["event"] == "accepted"]
        known: list[str] = []
        for entry in self.json("status"):
            if not entry["emulated"]:
                continue  # its results came from a file, and the ledger does not know them
            run = self.folder / entry["run"]
            text = (run / "journal").read_text()
            for event in accepted:
                event["owner"] = "client" if f'"nonce":"{event["nonce"]}","rep":' in text else "another run"
            known += [event["nonce"] for event in accepted if event["owner"] == "client"]
            ledger = self.folder / "ledger-of-a-run.jsonl"
            ledger.write_text("".join(json.dumps(event) + "\n" for event in events))
            manifest = self.folder / "manifests" / entry["manifest"]
            found = audit(load(ledger, run, manifest, status=entry, unfinished=entry["in_flight"] > 0))["invariants"]
            del found["answers_belong_to_their_prompts"]  # it is about the persona `echo` alone
            wrong = {name: one["problems"] for name, one in found.items() if one["problems"]}
            assert not wrong, (entry["run"], wrong)
        assert sorted(known) == sorted(event["nonce"] for event in accepted), "each batch belongs to one run"


def is_about(entry: Json, run: tuple[str, str]) -> bool:
    probe, model = run
    return bool(entry["manifest"].rpartition("-")[0] == probe and entry["model"] == model)


@pytest.fixture(params=COMMITS)
def old(request: pytest.FixtureRequest, tmp_path: Path, batchbench: Run) -> Iterator[Home]:
    home = Home(tmp_path / "home", request.param, batchbench)
    with Emulator(home.folder) as emulator:
        later = json.dumps({"advance": 400 * 86_400}).encode()  # so that the test is the same on every later day
        url = emulator["openai"].replace("/openai/v1", "/__emu/clock")
        call = Request(url, later, {"authorization": f"Bearer {emulator['token']}"})  # noqa: S310 - this machine
        urlopen(call).close()  # noqa: S310
        yield home


def test_there_is_a_home() -> None:
    assert COMMITS


def test_every_number_is_what_the_old_version_said(old: Home) -> None:
    assert old.json("status") == old.recorded["status"]
    assert old.json("audit") == old.recorded["audit"]
    assert not any(entry["findings"] for entry in old.recorded["audit"])
    for run in (*FINISHED, MISSING):
        assert old.json("analyze", *asked(run))["metrics"] == old.recorded["metrics"][" ".join(run)]


def test_interrupted_runs_are_finished_and_pay_for_nothing_twice(old: Home) -> None:
    for run in (STOPPED, UNSENT, UNHEARD):
        before = old.status(run)
        items = ("--sample-k", "10") if run == UNHEARD else ()
        (report,) = old.json("run", *asked(run), *items, "--budget", "1", "--adopt")
        assert report["answered"] == before["asked"] > before["answered"]
        found = old.status(run)
        assert (found["answered"], found["in_flight"], found["todo"]) == (before["asked"], 0, 0)
        assert set(found["batches"]) <= {"stored", "void"}
        old.json("analyze", *asked(run))
    old.prove()


def test_a_finished_run_buys_nothing_more(old: Home) -> None:
    before = (old.folder / "cache/emulator/ledger.jsonl").read_text().count('"event":"accepted"')
    for run, items in FINISHED.items():
        (report,) = old.json("run", *asked(run), "--sample-k", items, "--adopt")
        assert report["answered"] == report["asked"]
    assert (old.folder / "cache/emulator/ledger.jsonl").read_text().count('"event":"accepted"') == before


def test_missing_rows_are_bought_again_when_asked_for(old: Home) -> None:
    assert old.status(MISSING)["missing"] == 4
    old.json("run", *asked(MISSING), "--adopt", code=6)
    (report,) = old.json("run", *asked(MISSING), "--adopt", "--rebuy-missing")
    assert (report["answered"], report["missing"]) == (12, 0)


def test_exported_requests_are_imported(old: Home) -> None:
    files = sorted(map(str, (old.folder / "export").glob("*.results")))
    taken = old.json("import", *files)
    assert [entry["missing"] for entry in taken] == [0, 0]
    found = old.status(EXPORTED)
    assert (found["answered"], found["in_flight"], found["reserved_usd"]) == (14, 0, 0)
    assert not any(entry["findings"] for entry in old.json("audit"))
    old.prove()
