"""mlm: 761 + 1,018 masked sentences in batched passes, against one call of the fill-mask pipeline for each.

The model is a BERT with random weights, so only its shape matters. Needs the extra `mlm`; without it, nothing is done.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

from batchbench import datasets, probes
from batchbench.store import Store
from tests.benchmarks.measure import Cost, Result, compared, run

PROBES = ("wino_bias", "crows_pairs")
OURS = """
import json, sys, time
from batchbench.mlm import filling, runtimes
model, sentences = sys.argv[1], json.load(open(sys.argv[2]))
runtime = runtimes.load(model)
filling.answers(runtime, [filling.question(runtime, sentences[0][0], tuple(sentences[0][1:]))])
started, cpu = time.monotonic(), time.process_time()
asked = [filling.question(runtime, text, (one, two)) for text, one, two in sentences]
found = filling.answers(runtime, asked)
seconds = [time.monotonic() - started, time.process_time() - cpu]
print(json.dumps({"seconds": seconds, "scores": [[guess.score for guess in answer.top] for answer in found]}))
"""
ALONE = """
import json, sys, time
from transformers import logging, pipeline
logging.set_verbosity_error()
model, sentences = sys.argv[1], json.load(open(sys.argv[2]))
unmasker = pipeline("fill-mask", model=model, device="cpu")
unmasker(sentences[0][0])
started, cpu = time.monotonic(), time.process_time()
found = [unmasker(text) for text, _, _ in sentences]
seconds = [time.monotonic() - started, time.process_time() - cpu]
print(json.dumps({"seconds": seconds, "scores": [[guess["score"] for guess in answer] for answer in found]}))
"""


def mlm(home: Path, *, full: bool) -> list[Result]:
    """A small BERT, or one of 12 layers and 384 units; without what a process needs to start."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        sys.stderr.write("mlm: left out, pip install 'batchbench[mlm]'\n")
        return []
    from tests.mlm import models

    sentences = _sentences(home)
    layers, hidden = (12, 384) if full else (4, 128)
    model = models.bert(home / "model", [text for text, _, _ in sentences], {}, layers=layers, hidden=hidden)
    file = home / "sentences.json"
    file.write_text(json.dumps(sentences))
    found = []
    for script in (OURS, ALONE):
        whole, output = run([sys.executable, "-W", "ignore", "-c", script, str(model), str(file)])
        told = json.loads(output)
        seconds, cpu = told["seconds"]
        cost = Cost(seconds=round(seconds, 3), cpu_seconds=round(cpu, 3), peak_mb=whole.peak_mb)
        found.append((cost, told["scores"]))
    (ours, mine), (other, theirs) = found
    apart = max(abs(a - b) for one, two in zip(mine, theirs, strict=True) for a, b in zip(one, two, strict=True))
    if apart > 1e-5:
        raise RuntimeError(f"the same sentences were given probabilities {apart:g} apart")
    what = f"{layers} layers of {hidden}, both candidates too, vs one pipeline call per sentence ({apart:.0e} apart)"
    return [compared("mlm", what, len(sentences), ours, other)]


def _sentences(home: Path) -> list[list[str]]:
    """The sentences of both probes, each with its candidates."""
    rows: list[list[str]] = []
    for name in PROBES:
        probe = probes.load(name)
        assert probe.candidates is not None
        tables = {
            data: datasets.table(Store(home), data, sample=False, note=lambda _: None)[0] for data in probe.datasets
        }
        table = probe.design(probe.params(), tables).select(
            "sentence", one=probe.candidates[0], two=probe.candidates[1]
        )
        rows += [list(row) for row in table.collect().rows()]
    return rows
