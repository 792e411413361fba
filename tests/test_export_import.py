"""Export requests to files and import result files: answers are attributed, checked and priced as in a run."""

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


class ManualProvider:
    """A home, and an emulated provider to which files are uploaded by hand."""

    def __init__(self, folder: Path, run: Run, provider: Emulator) -> None:
        self.home, self.out, self.provider, self._run = folder / "home", folder / "out", provider, run

    def __call__(self, *words: str | Path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command: in this process, which is faster, or in another one if `env` is given."""
        line = [*map(str, words), "--home", str(self.home)]
        if env is not None:
            return self._run(*line, env=env)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(line)
        return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())

    def killed_at(self, point: str, *words: str | Path) -> None:
        """Run a command that is killed at a crash point; `torn-EVENT` leaves half of that event's line."""
        killed = self(*words, env={"PATH": "", "BATCHBENCH_CRASH": point.replace("torn-", "after-")})
        assert killed.returncode == -9, (point, killed)
        if point.startswith("torn-"):
            tear_last_line(self.home)

    def json(self, *words: str | Path) -> Any:
        ran = self(*words, "--json")
        assert ran.returncode == 0, ran
        return json.loads(ran.stdout)

    def export(self, *words: str) -> list[Path]:
        return [Path(entry["file"]) for entry in self.json("export", *GEST, *PRICE, "-o", self.out, *words)]

    def answered(self, file: Path) -> list[Json]:
        """Upload a file, create a batch, and return its result lines."""
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
def manual(tmp_path: Path, batchbench: Run) -> Iterator[ManualProvider]:
    provider = Emulator(tmp_path / "provider")
    yield ManualProvider(tmp_path, batchbench, provider)
    provider.stop()


def test_exported_and_imported_answers_equal_those_of_a_run(manual: ManualProvider, tmp_path: Path) -> None:
    files = manual.export("--batch-size", "20")
    requests = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(files) > 1
    assert {tuple(request) for request in requests} == {("custom_id", "method", "url", "body")}
    assert {request["body"]["model"] for request in requests} == {"stereotyping"}
    held = manual.status()
    assert (held["in_flight"], held["answered"], held["batches"]) == (len(requests), 0, {"exported": len(files)})
    for number, file in enumerate(files):
        (imported,) = manual.json("import", manual.results(f"r{number}.jsonl", [*manual.answered(file)]))
        assert (imported["missing"], imported["quarantined"]) == (0, 0)
    status = manual.status()
    assert (status["answered"], status["in_flight"], status["reserved_usd"]) == (len(requests), 0, 0)
    assert round(status["spent_usd"] * 1e6) == sum(event["cost"] for event in manual.provider.events("billed"))
    assert all(not audit["findings"] for audit in manual.json("audit"))
    explained = manual.json("explain", requests[3]["custom_id"])
    assert requests[3]["body"]["messages"][-1]["content"] == explained["prompt"]
    analysis = manual.json("analyze", *GEST)
    assert analysis["metrics"]["stereotype_rate"]["estimate"] == 1.0
    # The same run over HTTP has the same metrics.
    other = tmp_path / "other"
    words = (*GEST, *PRICE, "--base-url", manual.provider.openai_url, "--home", other, "--json")
    assert manual._run("run", *words, env={"OPENAI_API_KEY": manual.provider.token, "PATH": ""}).returncode == 0
    wire = json.loads(manual._run("analyze", *GEST, "--home", other, "--json").stdout)
    assert wire["metrics"] == analysis["metrics"]


def test_exporting_again_restores_only_missing_files_byte_for_byte(manual: ManualProvider) -> None:
    first, second, *_ = files = manual.export("--batch-size", "20")
    before = {file: file.read_bytes() for file in files}
    assert manual.export("--batch-size", "20") == []
    second.unlink()
    assert manual.export("--batch-size", "20") == [second]
    assert {file: file.read_bytes() for file in files} == before
    assert first.exists()


def test_a_run_does_not_change_exported_requests(manual: ManualProvider) -> None:
    (file,) = manual.export()
    words = ("run", *GEST, *PRICE, "--base-url", manual.provider.openai_url, "--json")
    # The address is part of the target, so this is another run than the exported one, which has no address.
    key = {"OPENAI_API_KEY": manual.provider.token, "PATH": ""}
    assert manual(*words, env=key).returncode == 0
    moved = manual.results("all.jsonl", [*manual.answered(file)])
    assert manual("import", moved).returncode == 0


def test_an_exported_batch_can_be_resolved_as_void(manual: ManualProvider) -> None:
    (file,) = manual.export()
    nonce = file.stem.rpartition("-")[2]
    again = manual("export", *GEST, *PRICE, "-o", manual.out, "--resolve", f"{nonce}=void")
    assert again.returncode == 0, again
    (other,) = [path for path in manual.out.iterdir() if path != file]
    refused = manual("import", manual.results("old.jsonl", [*manual.answered(file)]))
    assert (refused.returncode, "was given up" in refused.stderr) == (2, True)
    assert manual("import", manual.results("new.jsonl", [*manual.answered(other)])).returncode == 0


KILL_POINTS = [f"{step}-{event}:2" for event in ("intent", "exported") for step in ("before", "torn", "after")]


@pytest.mark.full
def test_a_killed_export_leaves_no_file_that_is_not_in_the_journal(manual: ManualProvider) -> None:
    for number, point in enumerate(KILL_POINTS, 1):
        words = ("export", *GEST, *PRICE, "-o", manual.out, "--batch-size", "3", "--sample-k", str(10 * number))
        manual.killed_at(point, *words)
        assert manual(*words).returncode == 0
    lines = [json.loads(line) for file in manual.out.iterdir() for line in file.read_text().splitlines()]
    rows = sorted(int(line["custom_id"].split("-")[1]) for line in lines)
    assert rows == list(range(10 * len(KILL_POINTS)))
    assert manual.status()["in_flight"] == len(rows)


@pytest.mark.full
@pytest.mark.parametrize(
    "point", ["segment-written", "segment-renamed", "answers-before", "answers-after", "torn-stored", "after-stored"]
)
def test_a_killed_import_can_be_repeated(manual: ManualProvider, point: str) -> None:
    (file,) = manual.export()
    lines = manual.answered(file)
    halves = [manual.results("one.jsonl", [*lines[:9]]), manual.results("two.jsonl", [*lines[9:]])]
    manual.killed_at(f"{point}:1", "import", *halves)
    again = manual("import", manual.results("whole.jsonl", [*lines]))
    assert again.returncode == (2 if point == "after-stored" else 0), again  # 2: the import was complete
    assert manual.status()["answered"] == len(lines)
    assert all(not audit["findings"] for audit in manual.json("audit"))


def test_a_budget_limits_the_exported_requests(manual: ManualProvider) -> None:
    ran = manual("export", *GEST, *PRICE, "-o", manual.out, "--budget", "0.001", "--json")
    assert ran.returncode == 3, ran
    assert 0 < sum(entry["requests"] for entry in json.loads(ran.stdout)) < 50
    assert 0 < manual.status()["reserved_usd"] <= 0.001


# -- incomplete, damaged and foreign result files ----------------------------------------------------------


def test_a_batch_is_imported_completely_or_refused(manual: ManualProvider) -> None:
    (file,) = manual.export()
    lines = manual.answered(file)
    half = manual.results("half.jsonl", [*lines[: len(lines) // 2]])
    refused = manual("import", half)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (65, 1)
    assert "add the other files, or use --partial" in refused.stderr
    assert not list((manual.folder / "raw").iterdir())
    rest = manual.results("rest.jsonl", [*lines[len(lines) // 2 :]])
    (imported,) = manual.json("import", half, rest)
    assert (imported["answered"], imported["missing"]) == (len(lines), 0)
    again = manual("import", half, rest)
    assert (again.returncode, "were imported before" in again.stderr) == (2, True)
    assert all(not audit["findings"] for audit in manual.json("audit"))


def test_rows_that_a_partial_file_lacks_are_missing_until_they_are_bought_again(manual: ManualProvider) -> None:
    (file,) = manual.export()
    lines = manual.answered(file)
    ran = manual("import", manual.results("half.jsonl", [*lines[:10]]), "--partial", "--json")
    assert ran.returncode == 6
    (imported,) = json.loads(ran.stdout)
    assert (imported["answered"], imported["missing"]) == (10, len(lines) - 10)
    assert manual.export() == []
    (other,) = manual.export("--rebuy-missing")
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
    ("spoil", "answered", "quarantined"),
    [(foreign, 0, 1), (garbage, 0, 4), (out_of_range, 0, 2), (contradiction, -1, 1)],
)
def test_lines_without_a_matching_request_are_quarantined(
    manual: ManualProvider, spoil: Callable[[list[Json]], list[Json | bytes]], answered: int, quarantined: int
) -> None:
    (file,) = manual.export()
    lines = manual.answered(file)
    (imported,) = manual.json("import", manual.results("results.jsonl", spoil(lines)))
    assert (imported["answered"], imported["quarantined"]) == (len(lines), quarantined)
    assert manual.json("analyze", *GEST)["coverage"]["attempts"] == len(lines) + answered
    assert all(not audit["findings"] for audit in manual.json("audit"))


def test_a_file_with_impossible_token_counts_is_refused(manual: ManualProvider) -> None:
    (file,) = manual.export()
    lines = manual.answered(file)
    lines[0]["response"]["body"]["usage"]["completion_tokens"] = 10**12
    refused = manual("import", manual.results("dear.jsonl", [*lines]))
    assert (refused.returncode, len(refused.stderr.splitlines())) == (65, 1)
    assert "can cost at most" in refused.stderr
    assert manual.status()["spent_usd"] == 0


def test_results_of_another_home_are_refused(manual: ManualProvider, tmp_path: Path) -> None:
    (file,) = manual.export()
    path = manual.results("theirs.jsonl", [{"custom_id": "abc-1-0"}, b"nonsense"])
    refused = manual("import", path)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (65, 1)
    assert "answers a request exported from" in refused.stderr
    lines = [*manual.answered(file)]
    shutil.rmtree(manual.home)
    assert manual("import", manual.results("mine.jsonl", lines)).returncode == 65
    assert manual("import", tmp_path / "nothing.jsonl").returncode == 65


def test_one_file_may_contain_results_of_several_batches(manual: ManualProvider) -> None:
    files = manual.export("--batch-size", "20")
    lines = [line for file in files for line in manual.answered(file)]
    lines.sort(key=lambda line: str(line["custom_id"])[::-1])
    imported = manual.json("import", manual.results("all.jsonl", [*lines]))
    assert sum(entry["answered"] for entry in imported) == len(lines)
    assert all(not audit["findings"] for audit in manual.json("audit"))


def test_imported_results_are_booked_at_the_price_of_their_export(manual: ManualProvider) -> None:
    (file,) = manual.export("--sample-k", "2")
    lines = manual.answered(file)
    manual.json("export", *GEST, "--price", "0.0075,0.03", "-o", manual.out, "--sample-k", "4")
    (imported,) = manual.json("import", manual.results("r.jsonl", [*lines]))
    assert round(imported["cost_usd"] * 1e6) == sum(event["cost"] for event in manual.provider.events("billed"))
    assert all(not audit["findings"] for audit in manual.json("audit"))
