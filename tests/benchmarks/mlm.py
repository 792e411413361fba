"""mlm: 761 + 1,018 masked sentences in batched passes, against one call for each.

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
# The likeliest tokens alone, or the candidates' probabilities too; all at once, or a sentence at a time.
OURS = """
import json, sys, time
from batchbench.mlm import filling, runtimes
model, sentences = sys.argv[1], json.load(open(sys.argv[2]))
candidates, alone = "pairs" in sys.argv, "alone" in sys.argv
runtime = runtimes.load(model)
def asked(text, *pair):
    return filling.question(runtime, text, pair if candidates else None)
filling.answers(runtime, [asked(*sentences[0])])
started, cpu = time.monotonic(), time.process_time()
if alone:
    found = [filling.answers(runtime, [asked(*sentence)])[0] for sentence in sentences]
else:
    found = filling.answers(runtime, [asked(*sentence) for sentence in sentences])
seconds = [time.monotonic() - started, time.process_time() - cpu]
numbers = [[guess.score for guess in answer.top] + (answer.candidates or []) for answer in found]
print(json.dumps({"seconds": seconds, "numbers": numbers}))
"""
PIPELINE = """
import json, sys, time
from transformers import logging, pipeline
logging.set_verbosity_error()
model, sentences = sys.argv[1], json.load(open(sys.argv[2]))
unmasker = pipeline("fill-mask", model=model, device="cpu")
unmasker(sentences[0][0])
started, cpu = time.monotonic(), time.process_time()
found = [unmasker(text) for text, _, _ in sentences]
seconds = [time.monotonic() - started, time.process_time() - cpu]
print(json.dumps({"seconds": seconds, "numbers": [[guess["score"] for guess in answer] for answer in found]}))
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
    arguments = [str(model), str(file)]
    pipeline, top = _measured(PIPELINE, *arguments), _measured(OURS, *arguments)
    alone, pairs = _measured(OURS, *arguments, "pairs", "alone"), _measured(OURS, *arguments, "pairs")
    shape = f"{layers} layers of {hidden}"
    return [
        _compared(f"{shape}, likeliest tokens, vs one call of the pipeline per sentence", top, pipeline),
        _compared(f"{shape}, both candidates too, vs one call per sentence", pairs, alone),
    ]


Numbers = list[list[float | None]]


def _measured(script: str, *arguments: str) -> tuple[Cost, Numbers]:
    # One thread each: on a busy machine, threads that wait for one another would be most of what is measured.
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    whole, output = run(command, {"OMP_NUM_THREADS": "1"})
    told = json.loads(output)
    seconds, cpu = told["seconds"]
    return Cost(seconds=round(seconds, 3), cpu_seconds=round(cpu, 3), peak_mb=whole.peak_mb), told["numbers"]


def _compared(what: str, ours: tuple[Cost, Numbers], other: tuple[Cost, Numbers]) -> Result:
    pairs = [pair for one, two in zip(ours[1], other[1], strict=True) for pair in zip(one, two, strict=True)]
    apart = max(abs((a or 0.0) - (b or 0.0)) for a, b in pairs)
    if apart > 1e-5:
        raise RuntimeError(f"the same sentences were given probabilities {apart:g} apart")
    return compared("mlm", f"{what} ({apart:.0e} apart)", len(ours[1]), ours[0], other[0], per="cpu_seconds")


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
