"""Files that users exchange: a file that batchbench did not write is refused with a message, not with a crash."""

import contextlib
import io
import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st

from batchbench import cli, emulator
from batchbench.analyze.check_sheet import labels_of, read_sheet
from batchbench.analyze.human_check import (
    CheckedFile,
    HumanCheck,
    Sample,
    Stratum,
    evaluate,
    read_human_check,
    read_samples,
    sentences,
)
from batchbench.app import sweep_file
from batchbench.app.status import run_status
from batchbench.compile.manifest import decode
from batchbench.core.store import Store
from batchbench.emulator.faults.rules import parse_rules
from batchbench.errors import BatchbenchError, DataError
from batchbench.providers import prices
from batchbench.report import gather
from batchbench.runs import journal
from batchbench.runs.folder import read_run, read_state
from batchbench.runs.results import answer_files
from tests.fuzz.mutants import fuzz, mutants
from tests.test_journal import EVENTS, written

ALLOWED = contextlib.suppress(BatchbenchError)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an exported run: it has every kind of file, and no model was called."""
    home = tmp_path_factory.mktemp("fuzzed")
    words = ["gest", "--set", "data=sample", "--model", "openai:m", "--price", "1,1", "-o", str(home / "out")]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main(["export", *words, "--home", str(home)]) == 0
    return home


def run_folder(home: Path) -> Path:
    return next(home.glob("cache/*/*/run.json")).parent


@fuzz(cut=st.integers(0, 5000), change=mutants([b"\n", written(EVENTS)[:80]]), stop=st.integers(0, 60))
def test_a_damaged_journal_is_a_prefix_of_the_events_or_an_error(cut: int, change: bytes, stop: int) -> None:
    whole = written(EVENTS)
    cut %= len(whole)
    with contextlib.suppress(DataError):
        found = journal.read(whole[:cut] + change + whole[cut + stop :], "journal").events
        assert found == EVENTS[: len(found)]


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """A journal that another program wrote, with correct checksums."""
    samples = [json.loads(msgspec.json.encode(event)) for event in EVENTS]
    texts = [json.dumps(sample).encode() for sample in samples]
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, min(len(texts), len(samples)) - 1))
        action = draw(st.sampled_from(["change", "change", "drop", "again"]))
        if action == "change":
            texts[index] = draw(mutants([samples[index]])).replace(b"\n", b"")
        elif action == "drop" and len(texts) > 1:
            del texts[index]
        else:
            texts.insert(index, draw(st.sampled_from(texts)))
    return signed(texts)


def signed(texts: list[bytes]) -> bytes:
    content, crc = b"", 0
    for seq, text in enumerate(texts):
        body = b"%d %s" % (seq, text)
        crc = zlib.crc32(body, crc)
        content += b"%08x %s\n" % (crc, body)
    return content


@fuzz(content=forged())
def test_a_forged_journal_is_replayed_or_refused(home: Path, content: bytes) -> None:
    folder = run_folder(home)
    (folder / "journal").write_bytes(content)
    with ALLOWED:
        state = read_state(folder)
        assert state.spent() >= 0
        assert state.reserved() >= 0
        assert all(part.resolve().is_relative_to(folder) for b in state.batches.values() for part in answer_files(folder, b))  # fmt: skip  # noqa: E501
    with ALLOWED:
        run_status(Store(home), folder)


EVENT = {"event": "asked", "at": 1, "items": 1, "repetitions": 1, "budget": None}
RATES = {"input": 1, "output": 1, "source": "x"}
OPENED = {"event": "opened", "at": 1, "run": "r", "manifest": "m", "target": "t", "format": 1}
INTENT = {"event": "intent", "at": 1, "nonce": "a", "rep": 0, "ranges": [[0, 1]], "rows": 1, "reserve": 1}
FORGERIES = [
    [EVENT | {"rates": RATES, "items": 2**40}],
    [EVENT | {"rates": RATES, "items": 2**32 - 1, "repetitions": 65_535}],
    [EVENT | {"rates": RATES | {"input": -1}}],
    [INTENT | {"nonce": "../../x"}],
    [INTENT | {"ranges": [[0, 2**60]]}],
    [INTENT | {"reserve": -(10**9)}],
    [INTENT, {"event": "exported", "at": 1, "nonce": "a", "file": "../../.profile"}],
    [{"event": "created", "at": 1, "nonce": "nobody", "remote": "x"}],
    [{"event": "passed", "at": 1, "cost": 1}],
    [INTENT | {"at": 1e300}],
]


@pytest.mark.parametrize("events", FORGERIES, ids=range(len(FORGERIES)))
def test_a_journal_with_impossible_events_is_refused(home: Path, events: list[dict[str, object]]) -> None:
    folder = run_folder(home)
    (folder / "journal").write_bytes(signed([json.dumps(event).encode() for event in [OPENED, *events]]))
    with pytest.raises(DataError):
        run_status(Store(home), folder)


@fuzz(data=st.data())
def test_run_json_is_read_or_refused(home: Path, data: st.DataObject) -> None:
    path = run_folder(home) / "run.json"
    original = path.read_bytes()
    try:
        path.write_bytes(data.draw(mutants([original])))
        with ALLOWED:
            found = read_run(path)
            assert (Store(home).manifests / found.manifest).parent == Store(home).manifests
            assert found.target.slug
    finally:
        path.write_bytes(original)


@fuzz(data=st.data())
def test_a_manifest_is_read_or_refused(home: Path, data: st.DataObject) -> None:
    (path,) = home.glob("manifests/*/manifest.json")
    with ALLOWED:
        found = decode(data.draw(mutants([path.read_bytes()])), path)
        assert all((path.parent / shard.file).parent == path.parent for shard in found.shards)


PRICES = {"source": "s", "date": "2026-01-01", "models": {"openai:m": {"input": 1, "output": 2, "batch_input": 1, "batch_output": 1}}}  # fmt: skip  # noqa: E501


@fuzz(content=mutants([PRICES]))
def test_prices_are_read_or_refused_and_never_negative(home: Path, content: bytes) -> None:
    path = home / "prices.json"
    path.write_bytes(content)
    with ALLOWED:
        price = prices.batch_price(prices.snapshot(path), "openai", "m")
        assert price.cost(10, 10) >= 0


ENDPOINT = {"openai": "http://127.0.0.1:1/openai/v1", "anthropic": "http://127.0.0.1:1/a", "token": "t", "ledger": "l", "pid": 1}  # fmt: skip  # noqa: E501


@fuzz(content=mutants([ENDPOINT]))
def test_an_emulators_address_is_used_only_if_it_answers(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "endpoint.json").write_bytes(content)
    assert emulator.find(tmp_path) is None


RULES = [
    b'{"do": "http-500", "on": "create", "p": 0.5}',
    b'{"do": "reset-after", "nth": [1], "key": "a+"}',
    b"# no rule",
]


@fuzz(text=mutants(RULES))
def test_fault_rules_are_read_or_refused(text: bytes) -> None:
    with ALLOWED:
        parse_rules(text.decode("utf-8", "replace"), "rules")


SWEEP = sweep_file.EXAMPLE.encode()
SHORT = b'probes = ["gest"]\nmodels = [{name = "sim:random", temperature = [0, 1], share = 2}]\nbudget = 1\n'


@fuzz(content=mutants([SWEEP, SHORT, SHORT]))
def test_a_sweep_file_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sweep.toml"
    path.write_bytes(content)
    with ALLOWED:
        sweep_file.read(path)


TOML = st.recursive(
    st.sampled_from(["1", "-1", "0", "1e999", "nan", "true", '"all"',
        '"sim:random"', '"chat:m@http://[::1"', "[]", "1979-05-27",
        '""', '"\\u0000"', "9" * 400]),
    lambda inner: st.lists(inner, max_size=3).map(lambda values: f"[{', '.join(values)}]"),
    max_leaves=4,
)  # fmt: skip
KEYS = ("name", "share", "sample_k", "repetitions", "price", "base_url", "batch_size", "system", "max_tokens", "temperature", "effort", "thinking", "extra", "data", "wording", "num_reorderings")  # fmt: skip  # noqa: E501


@fuzz(values=st.dictionaries(st.sampled_from(KEYS), TOML, max_size=3), table=st.sampled_from(["probes", "models", ""]))
def test_a_sweep_file_with_odd_values_is_read_or_refused(tmp_path: Path, values: dict[str, str], table: str) -> None:
    heads = {"probes": {"name": '"gest"'}, "models": {"name": '"sim:random"'}, "": {}}
    parts = {name: {**head, **(values if name == table else {})} for name, head in heads.items()}
    lines = [f"{key} = {value}" for key, value in parts[""].items()]
    for name in ("probes", "models"):
        lines += [f"[[{name}]]", *(f"{key} = {value}" for key, value in parts[name].items())]
    path = tmp_path / "sweep.toml"
    path.write_text("\n".join(lines))
    with ALLOWED:
        sweep_file.read(path)


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the results of an analysis."""
    folder = tmp_path_factory.mktemp("analysed")
    line = {"probe": "isear", "item_id": "7", "metadata": {"gender": "a man"}, "answers": ["joy", "fear"]}
    (folder / "answers.jsonl").write_text(json.dumps(line))
    words = ["isear", "--answers", str(folder / "answers.jsonl"), "--set", "data=sample", "--replicates", "20"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(["analyze", *words, "-o", str(folder / "out"), "--home", str(folder)]) == 0
    yield folder / "out"
    shutil.rmtree(folder)


@fuzz(data=st.data())
def test_an_analysis_is_read_or_refused(analysed: Path, data: st.DataObject) -> None:
    path = analysed / "other.json"
    path.write_bytes(data.draw(mutants([(analysed / "metrics.json").read_bytes()])))
    with ALLOWED:
        gather.read_analysis(path)


SHEET = b'id,prompt,answer,label,note\r\nab-1-0,"who, a or b?","\'=b",male,\r\nab-2-0,x,y,,\r\n'
SHEET_LINES = b'{"id": "ab-1-0", "prompt": "x", "answer": "y", "label": "none", "note": null}\n'


@fuzz(content=mutants([SHEET, SHEET, SHEET_LINES]), suffix=st.sampled_from([".csv", ".jsonl"]))
def test_a_file_with_labels_is_read_or_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(content)
    with ALLOWED:
        labels_of(path, read_sheet(path), ["male", "female"], {"ab-1-0": {"a": "male"}})


SAMPLE = Sample(
    probe="gest",
    run="r",
    size=2,
    seed=0,
    stored=9,
    without_text=0,
    strata=[Stratum(pairs=[("male", None)], answers=5, drawn=["ab-1-0", "ab-2-0"])],
)
FILE = CheckedFile(file="a.csv", sha256="", labelled=2)


@fuzz(content=mutants([msgspec.json.encode(SAMPLE)]))
def test_a_sample_of_answers_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checks").mkdir(exist_ok=True)
    (tmp_path / "checks/0.json").write_bytes(content)
    with ALLOWED:
        for sample in read_samples(tmp_path):
            evaluate(sample, dict.fromkeys(sample.ids, (None, None)), [(FILE, dict.fromkeys(sample.ids, "none"))])


@fuzz(data=st.data())
def test_a_human_check_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    accuracies, _ = evaluate(
        SAMPLE, dict.fromkeys(SAMPLE.ids, ("male", None)), [(FILE, dict.fromkeys(SAMPLE.ids, "male"))]
    )
    check = HumanCheck(
        probe="gest",
        model="m",
        version=1,
        careful_version=1,
        run="r",
        population=5,
        drawn=2,
        seed=0,
        files=[FILE],
        accuracies=accuracies,
    )
    (tmp_path / "human_check.json").write_bytes(data.draw(mutants([msgspec.json.encode(check)])))
    with ALLOWED:
        found = read_human_check(tmp_path)
        assert found
        sentences(found, 0)
