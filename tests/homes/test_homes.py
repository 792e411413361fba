"""Homes that older versions made: this version reads them without loss, finishes their runs and pays for nothing twice.

There is one for every commit that changed the events of the journal. `make.py` says how a home is made. Each stays as
it is: a new version adds a home and changes none.
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
from tests.homes.make import RECIPES, Emulator, Recipe, asked

Json = dict[str, Any]
HERE = Path(__file__).parent
NEWEST = "9a84368"
COMMITS = sorted(path.name.partition(".")[0] for path in HERE.glob("*.tar.xz"))
QUICK = ("cdbf98f", COMMITS[-1])
EACH = [pytest.param(commit, marks=[] if commit in QUICK else pytest.mark.full) for commit in COMMITS]


def known(new: Any, old: Any) -> Any:
    """What a document has in common with an older one: keys that came later are left out."""
    if isinstance(old, dict):
        return {key: known(new[key], value) for key, value in old.items()}
    if isinstance(old, list):
        return [known(one, other) for one, other in zip(new, old, strict=True)]
    return new


class Home:
    """A copy of the home that a commit made, and what that commit printed about it."""

    def __init__(self, folder: Path, commit: str, run: Run) -> None:
        self.folder, self._run = folder, run
        self.recorded: Json = json.loads((HERE / f"{commit}.json").read_bytes())
        self.recipe: Recipe = RECIPES[self.recorded.get("recipe", "full")]
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


def without_provider_time(home: Home) -> bool:
    """Whether a lost create has no time by the provider's clock, so that this clock must agree with the client's."""
    journals = home.folder.glob("cache/*/*/journal")
    creates = [line for path in journals for line in path.read_text().splitlines() if '"event":"creating"' in line]
    return any('"there":' not in line for line in creates)


# The oldest one, the large one and the newest one; the others with -m full.
BY_DEFAULT = ("8270564", "cdbf98f", NEWEST)


@pytest.fixture(
    params=[*BY_DEFAULT, *(pytest.param(one, marks=pytest.mark.full) for one in COMMITS if one not in BY_DEFAULT)]
)
def old(request: pytest.FixtureRequest, tmp_path: Path, batchbench: Run) -> Iterator[Home]:
    home = Home(tmp_path / "home", request.param, batchbench)
    with Emulator(home.folder) as emulator:
        if without_provider_time(home):
            yield home
            return
        later = json.dumps({"advance": 400 * 86_400}).encode()  # so that the test is the same on every later day
        url = emulator["openai"].replace("/openai/v1", "/__emu/clock")
        call = Request(url, later, {"authorization": f"Bearer {emulator['token']}"})  # noqa: S310 - this machine
        urlopen(call).close()  # noqa: S310
        yield home


def test_there_are_homes_and_they_are_small() -> None:
    assert len(COMMITS) > 12
    assert sum(path.stat().st_size for path in HERE.iterdir() if path.is_file()) < 400_000


@pytest.mark.parametrize("commit", EACH)
def test_every_number_is_what_the_old_version_said(commit: str, tmp_path: Path, batchbench: Run) -> None:
    old = Home(tmp_path / "home", commit, batchbench)
    assert known(old.json("status"), old.recorded["status"]) == old.recorded["status"]
    assert known(old.json("audit"), old.recorded["audit"]) == old.recorded["audit"]
    assert not any(entry["findings"] for entry in old.recorded["audit"])
    for run in (*old.recipe.finished, old.recipe.missing):
        recorded = old.recorded["metrics"][" ".join(run)]
        assert known(old.json("analyze", *asked(run))["metrics"], recorded) == recorded


@pytest.mark.full
def test_interrupted_runs_are_finished_and_pay_for_nothing_twice(old: Home) -> None:
    recipe = old.recipe
    items_of = {recipe.unheard: ("--sample-k", recipe.unheard_items), recipe.stopped: recipe.stopped_more}
    for run in filter(None, (recipe.stopped, recipe.unsent, recipe.unheard)):
        before = old.status(run)
        items = items_of.get(run, ())
        (report,) = old.json("run", *asked(run), *items, "--budget", "1", "--adopt")
        assert report["answered"] == before["asked"] > before["answered"]
        found = old.status(run)
        assert (found["answered"], found["in_flight"], found["todo"]) == (before["asked"], 0, 0)
        assert set(found["batches"]) <= {"stored", "void"}
        old.json("analyze", *asked(run))
    old.prove()


def test_a_finished_run_buys_nothing_more(old: Home) -> None:
    before = (old.folder / "cache/emulator/ledger.jsonl").read_text().count('"event":"accepted"')
    for run, items in old.recipe.finished.items():
        (report,) = old.json("run", *asked(run), "--sample-k", items, "--adopt")
        assert report["answered"] == report["asked"]
    assert (old.folder / "cache/emulator/ledger.jsonl").read_text().count('"event":"accepted"') == before


def test_missing_rows_are_bought_again_when_asked_for(old: Home) -> None:
    run = (*asked(old.recipe.missing), *old.recipe.more, "--adopt")
    assert old.status(old.recipe.missing)["missing"] == 4
    old.json("run", *run, code=6)
    (report,) = old.json("run", *run, "--rebuy-missing")
    assert (report["answered"], report["missing"]) == (12, 0)


def test_exported_requests_are_imported(old: Home) -> None:
    files = sorted(map(str, (old.folder / "export").glob("*.results")))
    if not files:
        return  # that commit could not export
    taken = old.json("import", *files)
    assert [entry["missing"] for entry in taken] == [0, 0]
    found = old.status(old.recipe.exported)
    assert (found["answered"], found["in_flight"], found["reserved_usd"]) == (found["asked"], 0, 0)
    assert not any(entry["findings"] for entry in old.json("audit"))
    old.prove()
