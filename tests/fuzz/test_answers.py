"""External answers and data files of all kinds: each is read, or refused with one of our errors."""

import contextlib
import io
import json
import shutil
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from hypothesis import strategies as st

from batchbench import cli
from batchbench.analyze.answer_files import ANSWER_FIELDS, label_file
from batchbench.analyze.labelled_answers import ANSWER_COLUMNS, input_columns
from batchbench.compile.catalogue import CATALOGUE, find_dataset
from batchbench.compile.data_cache import add_file, load_table
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError, DataError
from batchbench.probes import load_probe, probe_names
from tests.fuzz.mutants import HARD, fuzz, mutants
from tests.fuzz.test_results import OPENAI

Line = dict[str, object]
SPECIAL: dict[str, list[Line]] = {  # columns that only this probe's files may have
    "gest": [{"item_id": "1", "stereotype_id": 3, "options": ["male", "female", "neither"], "text": "(a)"}],
    "hiring_an": [{"name": "Ann", "role": "judge", "qualification_level": 1, "text": "You have been selected"}],
    "wino_bias": [{"pro_stereotyped": "he", "options": "A. he\nB. she\nC. Both A and B", "text": "A"}],
}


def lines_of(name: str, manifest: pl.DataFrame) -> list[Line]:
    """Lines of every shape for a probe, from the first row of its manifest."""
    probe = load_probe(name)
    inputs = [column for column in input_columns(probe) if column not in ANSWER_COLUMNS]
    columns = dict.fromkeys([*probe.strata, *probe.covariates, *inputs])
    design = {column: manifest[column].cast(pl.String)[0] for column in columns}
    prediction = [{"token_str": "he", "score": 0.4}, {"token_str": " she", "score": 0.1}]
    lines: list[Line] = [
        {"probe": name, "item_id": "7", "metadata": design, "answers": [f"(a) {probe.labels[0]}", None]},
        {"item_id": "7", **design, "text": "He is"},
        {"custom_id": "x1f-2-0", "text": "(b)", "outcome": "truncated"},
        {"id": 3, "rep": 1, "text": None},
    ]
    if "logprobs" in input_columns(probe):
        lines.append({"item_id": "8", **design, "answers": [prediction]})
        lines.append({"id": 1, "text": "A", "logprobs": [{"token": "A", "logprob": -0.1}]})
    return lines + SPECIAL.get(name, [])


@cache
def table(name: str) -> pl.DataFrame:
    return load_table(Store(Path("nowhere")), name, sample=True, note=lambda _: None)[0]


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    """The manifest rows of every probe, from its sample data."""
    home = tmp_path_factory.mktemp("compiled")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main(["compile", *probe_names(), "--set", "data=sample", "--home", str(home), "--quiet"]) == 0
    folders = {folder.name.rpartition("-")[0]: folder for folder in (home / "manifests").iterdir()}
    found = {name: pl.read_parquet(folder / "*.parquet").drop("prompt") for name, folder in folders.items()}
    shutil.rmtree(home)
    return found


def read(path: Path, name: str, manifest: pl.DataFrame) -> None:
    with contextlib.suppress(BatchbenchError):
        label_file(path, load_probe(name), table, lambda: manifest, sample_data=True)


@pytest.mark.parametrize("name", probe_names())
def test_lines_of_every_shape_are_valid(tmp_path: Path, manifests: dict[str, pl.DataFrame], name: str) -> None:
    """Otherwise the mutants would be far away from what files contain."""
    for line in lines_of(name, manifests[name]):
        (tmp_path / "answers.jsonl").write_text(json.dumps(line))
        if line not in SPECIAL.get(name, []):
            label_file(tmp_path / "answers.jsonl", load_probe(name), table, lambda: manifests[name], sample_data=True)


@pytest.mark.parametrize("name", probe_names())
@fuzz(data=st.data())
def test_answers_in_lines_are_read_or_refused(
    tmp_path: Path, manifests: dict[str, pl.DataFrame], name: str, data: st.DataObject
) -> None:
    lines = data.draw(st.lists(mutants(lines_of(name, manifests[name])), min_size=1, max_size=4))
    (tmp_path / "answers.jsonl").write_bytes(b"\n".join(lines))
    read(tmp_path / "answers.jsonl", name, manifests[name])


CELLS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8)
PROBES = [load_probe(name) for name in probe_names()]
COLUMNS = sorted({*ANSWER_FIELDS, *(name for p in PROBES for name in (*p.strata, *p.external_answers.spellings))})


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    height = draw(st.integers(0, 3))
    kinds = [CELLS, st.lists(st.text(max_size=3), max_size=3), st.sampled_from(["x-1-0", "a man", "male", "3", "bsri"])]
    names = draw(st.sets(st.sampled_from(COLUMNS), max_size=5)) | {"text"}
    columns = {name: draw(st.lists(draw(st.sampled_from(kinds)), min_size=height, max_size=height)) for name in names}
    return pl.DataFrame(columns, strict=False)


@pytest.mark.parametrize("name", probe_names())
@fuzz(frame=frames(), cut=st.none() | st.integers(0, 400), change=st.sampled_from(HARD))
def test_answers_in_parquet_are_read_or_refused(
    tmp_path: Path, manifests: dict[str, pl.DataFrame], name: str, frame: pl.DataFrame, cut: int | None, change: bytes
) -> None:
    path = tmp_path / "answers.parquet"
    frame.write_parquet(path)
    if cut is not None:
        content = path.read_bytes()
        place = 4 + cut % (len(content) - 4)
        path.write_bytes(content[:place] + change[:50] + content[place + 1 :])
    read(path, name, manifests[name])


FILES = {
    "names": [b'_names = {"Male": {"White": ["ANNA", "BEN"]}}\n'],
    "occupations": [b"noun,score\nnurse,1.5\npilot,6\n"],
    "isear": [b"I lost my keys.\nI won.\r\n"],
    "gest": [b'sentence,stereotype\n"I cry, often.",1\nI like cars.,16\n'],
    "wino_bias": [b'{"text": "The nurse said [MASK]", "options": ["he", "she"], "answer": "she"}\n'],
    "crows_pairs": [b"bias_type,sentence,mask1,mask2\ngender,[MASK] cried.,He,She\n"],
    "stereoset": [b'{"context": "She is", "more": "kind", "less": "rude"}\n'],
}


def test_every_data_set_that_can_be_trusted_is_fuzzed() -> None:
    assert set(FILES) == {name for name, dataset in CATALOGUE.items() if len(dataset.files) == 1}


@pytest.mark.parametrize("name", FILES)
@fuzz(data=st.data())
def test_trusted_data_is_read_or_refused(tmp_path: Path, name: str, data: st.DataObject) -> None:
    path = tmp_path / "data"
    path.write_bytes(data.draw(mutants(FILES[name])))
    store = Store(tmp_path)
    with contextlib.suppress(DataError):
        add_file(store, find_dataset(name), path, trust=True)
        load_table(store, name, sample=False, note=lambda _: None)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one exported file of requests."""
    home = tmp_path_factory.mktemp("exported")
    words = ["gest", "--set", "data=sample", "--sample-k", "1", "--set", "num_reorderings=3", "--model", "openai:m"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(["export", *words, "--price", "1,1", "-o", str(home / "out"), "--home", str(home)]) == 0
    return home


@fuzz(lines=st.lists(mutants(OPENAI), max_size=4))
def test_a_file_of_results_is_imported_or_refused(exported: Path, lines: list[bytes]) -> None:
    (asked,) = (exported / "out").iterdir()
    nonce = json.loads(asked.read_bytes().split(b"\n")[0])["custom_id"].partition("-")[0].encode()
    path = exported / "results.jsonl"
    path.write_bytes(b"\n".join(line.replace(b'"n-', b'"%s-' % nonce) for line in lines))
    (folder,) = (file.parent for file in exported.glob("cache/*/*/run.json"))
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = cli.main(["import", str(path), "--home", str(exported)])
    assert code in (0, 1, 65)
    if code == 65:
        assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before | {
            folder / "lock": (folder / "lock").read_bytes()
        }
    else:  # imported: restore the folder for the next example
        shutil.rmtree(folder)
        for file, content in before.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
