"""Requests leave as files and come back as files: attributed, checked and priced like any other answers."""

import contextlib
import io
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchbench import cli
from tests.conftest import Run
from tests.dispatch.scene import tear_last_line
from tests.emulator.driver import Emulator

Json = dict[str, Any]
GEST = ("gest", "--set", "data=sample", "--set", "num_reorderings=1", "--model", "openai:stereotyping")
PRICE = ("--price", "0.075,0.30")


class Desk:
    """A home, and a provider that somebody feeds by hand."""

    def __init__(self, folder: Path, run: Run, provider: Emulator) -> None:
        self.home, self.out, self.provider, self._run = folder / "home", folder / "out", provider, run

    def __call__(self, *words: str | Path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command; in this very process, which is faster, unless it needs an environment of its own."""
        line = [*map(str, words), "--home", str(self.home)]
        if env is not None:
            return self._run(*line, env=env)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(line)
        return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())

    def die(self, place: str, *words: str | Path) -> None:
        """Run a command that is killed at a crash point; `torn-EVENT` leaves half of that event's line."""
        killed = self(*words, env={"PATH": "", "BATCHBENCH_CRASH": place.replace("torn-", "after-")})
        assert killed.returncode == -9, (place, killed)
        if place.startswith("torn-"):
            tear_last_line(self.home)

    def json(self, *words: str | Path) -> Any:
        ran = self(*words, "--json")
        assert ran.returncode == 0, ran
        return json.loads(ran.stdout)

    def export(self, *words: str) -> list[Path]:
        return [Path(entry["file"]) for entry in self.json("export", *GEST, *PRICE, "-o", self.out, *words)]

    def answered(self, file: Path) -> list[Json]:
        """What the provider makes of a file that was uploaded by hand."""
        uploaded = self.provider.upload_bytes(file.name, file.read_bytes()).json()["id"]
        batch = self.provider.wait(self.provider.create(uploaded).json()["id"], "completed")
        return self.provider.results(batch)

    def results(self, name: str, lines: Sequence[Json | bytes]) -> Path:
        path = self.out / name
        texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        path.write_bytes(b"".join(text + b"\n" for text in texts))
        return path

    @property
    def folder(self) -> Path:
        return next(path.parent for path in self.home.glob("cache/*/*/run.json"))

    def status(self) -> Json:
        found: list[Json] = self.json("status")
        return found[0]


@pytest.fixture
def desk(tmp_path: Path, batchbench: Run) -> Iterator[Desk]:
    provider = Emulator(tmp_path / "provider")
    yield Desk(tmp_path, batchbench, provider)
    provider.stop()


def test_answers_that_went_by_file_are_like_any_other(desk: Desk, tmp_path: Path) -> None:
    files = desk.export("--batch-size", "20")
    requests = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(files) > 1
    assert {tuple(request) for request in requests} == {("custom_id", "method", "url", "body")}
    assert {request["body"]["model"] for request in requests} == {"stereotyping"}
    held = desk.status()
    assert (held["in_flight"], held["answered"], held["batches"]) == (len(requests), 0, {"exported": len(files)})
    for number, file in enumerate(files):
        (taken,) = desk.json("import", desk.results(f"r{number}.jsonl", [*desk.answered(file)]))
        assert (taken["missing"], taken["quarantined"]) == (0, 0)
    status = desk.status()
    assert (status["answered"], status["in_flight"], status["reserved_usd"]) == (len(requests), 0, 0)
    assert round(status["spent_usd"] * 1e6) == sum(event["cost"] for event in desk.provider.events("billed"))
    assert all(not audit["findings"] for audit in desk.json("audit"))
    told = desk.json("explain", requests[3]["custom_id"])
    assert requests[3]["body"]["messages"][-1]["content"] == told["prompt"]
    analysis = desk.json("analyze", *GEST)
    assert analysis["metrics"]["stereotype_rate"]["estimate"] == 1.0
    # The same run, asked over the wire instead: the same metrics.
    other = tmp_path / "other"
    words = (*GEST, *PRICE, "--base-url", desk.provider.openai_url, "--home", other, "--json")
    assert desk._run("run", *words, env={"OPENAI_API_KEY": desk.provider.token, "PATH": ""}).returncode == 0
    wire = json.loads(desk._run("analyze", *GEST, "--home", other, "--json").stdout)
    assert wire["metrics"] == analysis["metrics"]


def test_the_same_export_again_writes_only_what_got_lost_letter_for_letter(desk: Desk) -> None:
    first, second, *_ = files = desk.export("--batch-size", "20")
    before = {file: file.read_bytes() for file in files}
    assert desk.export("--batch-size", "20") == []
    second.unlink()
    assert desk.export("--batch-size", "20") == [second]
    assert {file: file.read_bytes() for file in files} == before
    assert first.exists()


def test_a_run_leaves_exported_requests_alone(desk: Desk) -> None:
    (file,) = desk.export()
    words = ("run", *GEST, *PRICE, "--base-url", desk.provider.openai_url, "--json")
    # An address is part of the target, so this is another run: the exported one is the one without.
    key = {"OPENAI_API_KEY": desk.provider.token, "PATH": ""}
    assert desk(*words, env=key).returncode == 0
    moved = desk.results("all.jsonl", [*desk.answered(file)])
    assert desk("import", moved).returncode == 0


def test_an_export_can_be_given_up(desk: Desk) -> None:
    (file,) = desk.export()
    nonce = file.stem.rpartition("-")[2]
    again = desk("export", *GEST, *PRICE, "-o", desk.out, "--resolve", f"{nonce}=void")
    assert again.returncode == 0, again
    (other,) = [path for path in desk.out.iterdir() if path != file]
    refused = desk("import", desk.results("old.jsonl", [*desk.answered(file)]))
    assert (refused.returncode, "was given up" in refused.stderr) == (2, True)
    assert desk("import", desk.results("new.jsonl", [*desk.answered(other)])).returncode == 0


DEATHS = [f"{step}-{event}:2" for event in ("intent", "exported") for step in ("before", "torn", "after")]


@pytest.mark.full
def test_an_export_killed_anywhere_leaves_no_file_that_nobody_knows(desk: Desk) -> None:
    for number, place in enumerate(DEATHS, 1):
        words = ("export", *GEST, *PRICE, "-o", desk.out, "--batch-size", "3", "--sample-k", str(10 * number))
        desk.die(place, *words)
        assert desk(*words).returncode == 0
    lines = [json.loads(line) for file in desk.out.iterdir() for line in file.read_text().splitlines()]
    rows = sorted(int(line["custom_id"].split("-")[1]) for line in lines)
    assert rows == list(range(10 * len(DEATHS)))
    assert desk.status()["in_flight"] == len(rows)


@pytest.mark.full
@pytest.mark.parametrize(
    "place", ["segment-written", "segment-renamed", "answers-before", "answers-after", "torn-stored", "after-stored"]
)
def test_an_import_killed_anywhere_is_taken_up_again(desk: Desk, place: str) -> None:
    (file,) = desk.export()
    lines = desk.answered(file)
    halves = [desk.results("one.jsonl", [*lines[:9]]), desk.results("two.jsonl", [*lines[9:]])]
    desk.die(f"{place}:1", "import", *halves)
    again = desk("import", desk.results("whole.jsonl", [*lines]))
    assert again.returncode == (2 if place == "after-stored" else 0), again  # then it was all done
    assert desk.status()["answered"] == len(lines)
    assert all(not audit["findings"] for audit in desk.json("audit"))


def test_a_budget_limits_what_is_exported(desk: Desk) -> None:
    ran = desk("export", *GEST, *PRICE, "-o", desk.out, "--budget", "0.001", "--json")
    assert ran.returncode == 3, ran
    assert 0 < sum(entry["requests"] for entry in json.loads(ran.stdout)) < 50
    assert 0 < desk.status()["reserved_usd"] <= 0.001


# -- hostile and clumsy result files -----------------------------------------------------------------------


def test_a_batch_is_taken_in_whole_or_not_at_all(desk: Desk) -> None:
    (file,) = desk.export()
    lines = desk.answered(file)
    half = desk.results("half.jsonl", [*lines[: len(lines) // 2]])
    refused = desk("import", half)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (65, 1)
    assert "name the other files, too, or --partial" in refused.stderr
    assert not list((desk.folder / "raw").iterdir())
    rest = desk.results("rest.jsonl", [*lines[len(lines) // 2 :]])
    (taken,) = desk.json("import", half, rest)
    assert (taken["answered"], taken["missing"]) == (len(lines), 0)
    again = desk("import", half, rest)
    assert (again.returncode, "taken in before" in again.stderr) == (2, True)
    assert all(not audit["findings"] for audit in desk.json("audit"))


def test_what_a_partial_file_lacks_is_missing_until_it_is_bought_again(desk: Desk) -> None:
    (file,) = desk.export()
    lines = desk.answered(file)
    ran = desk("import", desk.results("half.jsonl", [*lines[:10]]), "--partial", "--json")
    assert ran.returncode == 6
    (taken,) = json.loads(ran.stdout)
    assert (taken["answered"], taken["missing"]) == (10, len(lines) - 10)
    assert desk.export() == []
    (other,) = desk.export("--rebuy-missing")
    assert len(other.read_text().splitlines()) == len(lines) - 10


def foreign(lines: list[Json]) -> list[Json | bytes]:
    return [*lines, {**lines[0], "custom_id": "ffffffffff-0-0"}]


def garbage(lines: list[Json]) -> list[Json | bytes]:
    return [b"\x00\xff not json", *lines, b'{"custom_id": 7}', b"[]", b"{" * 5000]


def out_of_range(lines: list[Json]) -> list[Json | bytes]:
    nonce = lines[0]["custom_id"].partition("-")[0]
    return [*lines, {**lines[0], "custom_id": f"{nonce}-99999-0"}, {**lines[0], "custom_id": f"{nonce}-0-7"}]


def contradiction(lines: list[Json]) -> list[Json | bytes]:
    other = json.loads(json.dumps(lines[0]))
    other["response"]["body"]["choices"][0]["message"]["content"] = "something else"
    return [*lines, other]


@pytest.mark.parametrize(
    ("spoil", "answered", "aside"),
    [(foreign, 0, 1), (garbage, 0, 4), (out_of_range, 0, 2), (contradiction, -1, 1)],
)
def test_lines_that_fit_nothing_are_set_aside(
    desk: Desk, spoil: Callable[[list[Json]], list[Json | bytes]], answered: int, aside: int
) -> None:
    (file,) = desk.export()
    lines = desk.answered(file)
    (taken,) = desk.json("import", desk.results("results.jsonl", spoil(lines)))
    assert (taken["answered"], taken["quarantined"]) == (len(lines), aside)
    assert desk.json("analyze", *GEST)["coverage"]["attempts"] == len(lines) + answered
    assert all(not audit["findings"] for audit in desk.json("audit"))


def test_a_file_that_claims_impossible_costs_is_refused(desk: Desk) -> None:
    (file,) = desk.export()
    lines = desk.answered(file)
    lines[0]["response"]["body"]["usage"]["completion_tokens"] = 10**12
    refused = desk("import", desk.results("dear.jsonl", [*lines]))
    assert (refused.returncode, len(refused.stderr.splitlines())) == (65, 1)
    assert "is the most they can have" in refused.stderr
    assert desk.status()["spent_usd"] == 0


def test_results_of_somebody_else_are_refused(desk: Desk, tmp_path: Path) -> None:
    (file,) = desk.export()
    path = desk.results("theirs.jsonl", [{"custom_id": "abc-1-0"}, b"nonsense"])
    refused = desk("import", path)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (65, 1)
    assert "answers a request exported from" in refused.stderr
    lines = [*desk.answered(file)]
    shutil.rmtree(desk.home)
    assert desk("import", desk.results("mine.jsonl", lines)).returncode == 65
    assert desk("import", tmp_path / "nothing.jsonl").returncode == 65


def test_results_of_several_batches_may_come_in_one_file(desk: Desk) -> None:
    files = desk.export("--batch-size", "20")
    lines = [line for file in files for line in desk.answered(file)]
    lines.sort(key=lambda line: str(line["custom_id"])[::-1])
    taken = desk.json("import", desk.results("all.jsonl", [*lines]))
    assert sum(entry["answered"] for entry in taken) == len(lines)
    assert all(not audit["findings"] for audit in desk.json("audit"))
