"""The command line: whatever is typed, the program says what is wrong in one line and ends with a code of its own."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from batchbench import cli
from tests.emulator.driver import Emulator, chat_body
from tests.fuzz.mutants import fuzz, mutants

COMMANDS = ("estimate", "check", "run", "export", "cancel", "compile", "status", "audit", "explain", "answers", "analyze", "report", "import", "probes", "data", "prices")  # fmt: skip  # noqa: E501
OPTIONS = ("--model", "--set", "--sample-k", "--repetitions", "--price", "--base-url", "--system", "--max-tokens", "--temperature", "--top-p", "--effort", "--thinking", "--extra", "--batch-size", "--budget", "--resolve", "--answers", "--replicates", "--seed", "-o", "--title", "--pilot", "--anyway", "--json", "--quiet", "--detach", "--all", "--partial", "--unreadable", "--label", "--limit", "--check", "--checked")  # fmt: skip  # noqa: E501
VALUES = (
    "gest", "isear", "openai:m", "anthropic:m", "chat:m@http://127.0.0.1:9/v1", "chat:m@http://[", "chat:m@https://℀.x/",
    "openai:", ":", "data=sample", "data=full=", "=", "num_reorderings=99", "form=logprob", "1", "0", "-1", "9" * 30,
    "9" * 5000, "1e999", "nan", "inf", "１", "all", "1,1", "1e999,1", "-1,1", "nan,1", "x=void", "a-1-0",
    "a-1-" + "9" * 5000,
    "http://[", "https://evil.example", "refresh", "list", "add", "verify", "names", "/dev/null", "..",
    "\x00", "\ud800", "\x1b[2J", "",
)  # fmt: skip
WORD = st.sampled_from(OPTIONS + VALUES) | st.text(max_size=6)
CODES = {0, 1, 2, 3, 4, 6, 11, 65, 77}


def say(words: list[str], home: Path) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([*words, "--home", str(home)])
        except SystemExit as end:  # --help, --version
            code = int(end.code or 0)
    return code, err.getvalue()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place without keys in which files may be left lying around."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CHAT_API_KEY", "BATCHBENCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@fuzz(command=st.sampled_from(COMMANDS), words=st.lists(WORD, max_size=6))
def test_any_words_are_obeyed_or_refused(nowhere: Path, command: str, words: list[str]) -> None:
    sampled = ("estimate", "run", "export", "compile", "answers", "analyze", "cancel")
    usual = ["--set", "data=sample"] if command in sampled else []
    code, said = say([command, *words, *usual], nowhere)
    assert code in CODES
    assert code == 0 or said.splitlines()[-1].startswith("batchbench: ")


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--model", "gest"],
        ["estimate", "gest", "--model", "chat:m@http://["],
        ["estimate", "gest", "--model", "chat:m@https://a℀b.com/v1"],
        ["estimate", "gest", "--model", "openai:m", "--price", "1e999999,1"],
        ["estimate", "gest", "--model", "openai:m", "--price", f"{'9' * 5000},1"],
        ["estimate", "gest", "--model", "openai:m", "--sample-k", "9" * 5000],
        ["run", "gest", "--model", "openai:m", "--budget", "1e999999"],
        ["run", "gest", "--model", "openai:m", "--repetitions", "9" * 5000],
        ["explain", f"a-{'9' * 5000}-0"],
        ["analyze", "gest", "--answers", "x", "--replicates", "9" * 5000],
        ["report", "--model", "\x00"],
        ["import", "\x00"],
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_words_that_once_broke_it_are_refused(nowhere: Path, words: list[str]) -> None:
    code, said = say([*words, *(["--set", "data=sample"] if words[0] in ("estimate", "run") else [])], nowhere)
    assert code == 2, said
    assert len(said.splitlines()) == 1


BODIES = [
    {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"a": "b"}},
    {"requests": [{"custom_id": "n-0-0", "params": {**chat_body("x"), "max_tokens": 5}}]},
    {**chat_body("x"), "max_tokens": 5},
    {"advance": 0.0},
]  # fmt: skip
PATHS = ("/openai/v1/batches", "/openai/v1/chat/completions", "/openai/v1/files", "/anthropic/v1/messages", "/anthropic/v1/messages/batches", "/__emu/clock", "/openai/v1/batches/x%00/cancel")  # fmt: skip  # noqa: E501


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    found = Emulator(tmp_path_factory.mktemp("fuzzed-emulator"))
    yield found
    found.stop()


@fuzz(path=st.sampled_from(PATHS), body=mutants(BODIES))
def test_the_emulator_answers_any_request_and_lives(emulator: Emulator, path: str, body: bytes) -> None:
    assert emulator.call("POST", path, body).status < 500
    assert emulator.upload_bytes("x.jsonl", body).status < 500
