"""Answers and data that people bring: JSON lines, parquet, lists and tables of all kinds."""

import contextlib
import io
import json
import shutil
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from hypothesis import strategies as st

from batchbench import cli, probes
from batchbench.analyze import answer_files as given
from batchbench.compile import catalogue as datasets
from batchbench.core.store import Store
from batchbench.errors import BatchbenchError, DataError
from tests.fuzz.mutants import HARD, fuzz, mutants
from tests.fuzz.test_results import OPENAI

LINES: dict[str, list[dict[str, object]]] = {
    "isear": [{"probe": "isear", "item_id": "7", "metadata": {"gender": "a man"}, "answers": ["joy", None]}],
    "gest": [
        {"item_id": "1", "stereotype": 3, "options": ["He", "She", "Neither"], "text": "(a)"},
        {"custom_id": "x1f-12-0", "text": "(b)", "outcome": "truncated"},
        {"id": 3, "rep": 1, "text": None},
    ],
    "hiring_an": [{"gender": "male", "race": "white", "role_score": 0.5, "qualification": 1, "text": "accept"}],
    "inventories": [{"source": "bsri", "gender": "male", "text": "He is"}],
    "wino_bias": [
        {"pro_stereotyped": "he", "options": ["he", "she"], "answers": [[{"token_str": "he", "score": 0.4}]]},
        {"id": 1, "text": "A", "logprobs": [{"token": "A", "logprob": -0.1}]},
    ],
    "crows_pairs": [{"bias_type": "gender", "mask1": "he", "mask2": "she", "text": "A"}],
}


@cache
def table(name: str) -> pl.DataFrame:
    return datasets.table(Store(Path("nowhere")), name, sample=True, note=lambda _: None)[0]


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    """The rows of every probe's sample."""
    home = tmp_path_factory.mktemp("compiled")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main(["compile", *LINES, "--set", "data=sample", "--home", str(home), "--quiet"]) == 0
    folders = {folder.name.rpartition("-")[0]: folder for folder in (home / "manifests").iterdir()}
    found = {name: pl.read_parquet(folder / "*.parquet").drop("prompt") for name, folder in folders.items()}
    shutil.rmtree(home)
    return found


def read(path: Path, name: str, manifest: pl.DataFrame) -> None:
    with contextlib.suppress(BatchbenchError):
        given.read(path, probes.load(name), table, lambda: manifest, sample_data=True)


@pytest.mark.parametrize("name", LINES)
@fuzz(data=st.data())
def test_answers_in_lines_are_read_or_refused(
    tmp_path: Path, manifests: dict[str, pl.DataFrame], name: str, data: st.DataObject
) -> None:
    lines = data.draw(st.lists(mutants(LINES[name]), min_size=1, max_size=4))
    (tmp_path / "answers.jsonl").write_bytes(b"\n".join(lines))
    read(tmp_path / "answers.jsonl", name, manifests[name])


CELLS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8)
COLUMNS = (
    "item_id",
    "custom_id",
    "id",
    "rep",
    "text",
    "outcome",
    "gender",
    "stereotype",
    "options",
    "logprobs",
    "source",
)


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    height = draw(st.integers(0, 3))
    kinds = [CELLS, st.lists(st.text(max_size=3), max_size=3), st.sampled_from(["x-1-0", "a man", "male", "3", "bsri"])]
    names = draw(st.sets(st.sampled_from(COLUMNS), max_size=5)) | {"text"}
    columns = {name: draw(st.lists(draw(st.sampled_from(kinds)), min_size=height, max_size=height)) for name in names}
    return pl.DataFrame(columns, strict=False)


@pytest.mark.parametrize("name", ["isear", "gest"])
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


@pytest.mark.parametrize("name", FILES)
@fuzz(data=st.data())
def test_data_that_somebody_vouches_for_is_read_or_refused(tmp_path: Path, name: str, data: st.DataObject) -> None:
    path = tmp_path / "data"
    path.write_bytes(data.draw(mutants(FILES[name])))
    store = Store(tmp_path)
    with contextlib.suppress(DataError):
        datasets.add(store, datasets.find(name), path, trust=True)
        datasets.table(store, name, sample=False, note=lambda _: None)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home from which requests have left as a file."""
    home = tmp_path_factory.mktemp("exported")
    words = ["gest", "--set", "data=sample", "--sample-k", "1", "--set", "num_reorderings=3", "--model", "openai:m"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(["export", *words, "--price", "1,1", "-o", str(home / "out"), "--home", str(home)]) == 0
    return home


@fuzz(lines=st.lists(mutants(OPENAI), max_size=4))
def test_a_file_of_results_is_taken_in_or_refused(exported: Path, lines: list[bytes]) -> None:
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
    else:  # they are taken: put things back for the next
        shutil.rmtree(folder)
        for file, content in before.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
