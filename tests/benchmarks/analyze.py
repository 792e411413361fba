"""analyze: the full HiringAn against bare polars and numpy, and smaller ones against GenderBench's own calculators.

The comparison with GenderBench needs a Python that has it (see tests/golden/reference.py), named by
BATCHBENCH_GENDERBENCH; its 1,000 cycles are extrapolated from three of them.
"""

import json
import sys
from pathlib import Path

import polars as pl

from batchbench.emulator.personas.hiring import ACCEPTANCES, CLOSINGS, REJECTIONS
from batchbench.probes.kit.templates import hashed, pick
from tests.benchmarks.compile import GENDERBENCH, compiled
from tests.benchmarks.measure import Cost, Result, compared, run

REFERENCE = Path(__file__).parent.parent / "golden" / "reference.py"
OURS = """
import sys
from pathlib import Path
import msgspec
import polars as pl
from batchbench.probes import load_probe
from batchbench.analyze.analysis import analyze, write_analysis
from batchbench.analyze.labelled_answers import Origin
from batchbench.analyze.read import RunSize, label_run
from batchbench.compile.manifest import read_manifest
from batchbench.core.store import Store
home, folder, answers, items = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
probe, store = load_probe("hiring_an"), Store(home)
if sys.argv[5:] == ["reference"]:
    probe = msgspec.structs.replace(probe, careful=None, careful_steps=())
size, origin = RunSize(items=items, repetitions=1), Origin(model="benchmark", answers="")
labelled = label_run(probe, folder, read_manifest(folder), pl.scan_parquet(answers), size, origin)
analysis, cells = analyze(probe, probe.params(), labelled, replicates=1000, seed=0)
write_analysis(analysis, cells, home / "analysis", store)
"""
FLOOR = """
import sys
import numpy as np
import polars as pl
text = pl.col("text").str.to_lowercase()
no, yes = (text.str.contains(words, literal=True) for words in ("regret to inform you", "you have been selected"))
labels = pl.scan_parquet(sys.argv[2]).select(label=pl.when(no).then(0).when(yes).then(1)).collect(engine="streaming")
keys = ["gender", "race", "qualification", "role_score"]
design = pl.scan_parquet(f"{sys.argv[1]}/*.parquet").select(keys).head(labels.height).collect()
items = design.hstack(labels).group_by(*keys, "label").len()["len"].to_numpy()
np.random.default_rng(0).multinomial(items.sum(), items / items.sum(), size=1000)
"""


def analyze(home: Path, *, full: bool) -> list[Result]:
    """Analyze 5,424,000 answers, and the first 10,000 and 100,000 of them."""
    _, folder, prompts = compiled(home)
    answers = write_answers(home, folder)
    ours, _ = run([sys.executable, "-c", OURS, str(home), str(folder), answers, str(prompts)])
    reference, _ = run([sys.executable, "-c", OURS, str(home), str(folder), answers, str(prompts), "reference"])
    floor, _ = run([sys.executable, "-c", FLOOR, str(folder), answers])
    results = [
        compared("analyze", "1,000 replicates, vs bare polars and numpy", prompts, reference, floor),
        compared("analyze", "both readings, vs the reference reading alone", prompts, ours, reference),
    ]
    sizes = (10_000, 100_000) if full else (10_000,)
    return results + [against_genderbench(home, folder, answers, items) for items in sizes if GENDERBENCH]


def write_answers(home: Path, folder: Path) -> str:
    """Write an answer to every prompt of a manifest, as a run stores them; returns the pattern of the file names."""
    for number, shard in enumerate(sorted(folder.glob("*.parquet"))):
        answered(pl.read_parquet(shard, columns=["id", "name", "role", "gender"])).write_parquet(
            home / f"{number:05}.parquet"
        )
    return str(home / "?????.parquet")


def answered(rows: pl.DataFrame) -> pl.DataFrame:
    """An email for every prompt, in the words of the emulator's personas; one in fifty says neither yes nor no."""
    draw = hashed(pl.col("id"))
    wording = (draw // pl.lit(8, pl.UInt64)) % pl.lit(3, pl.UInt64)
    role = pl.col("role").cast(pl.String)
    accepted = pick(wording, [text.partition("{role}")[0] for text in ACCEPTANCES]) + role
    decision = (
        pl.when(draw % 50 == 0)
        .then(pl.lit("We will write again."))
        .when(draw % 100 < 50 + 5 * (pl.col("gender") == "male").cast(pl.UInt64))
        .then(accepted)
        .otherwise(pick(wording, REJECTIONS))
    )
    parts = [pl.lit("Dear "), pl.col("name").cast(pl.String), pl.lit(",\n\nThank you for your interest. "), decision]
    parts += [pl.lit(" "), pick(wording, CLOSINGS), pl.lit("\n\nKind regards,\nThe recruiting team")]
    return rows.select("id", rep=pl.lit(0, pl.UInt16), outcome=pl.lit("answered"), text=pl.concat_str(parts))


def against_genderbench(home: Path, folder: Path, answers: str, items: int) -> Result:
    """The same answers through both; ours includes reading and writing files, theirs only the calculator."""
    ours, _ = run([sys.executable, "-c", OURS, str(home), str(folder), answers, str(items)])
    design = pl.scan_parquet(folder / "*.parquet").select("id", "name", "role", "qualification").head(items).collect()
    texts = pl.scan_parquet(answers).select("text").head(items).collect()["text"]
    file = home / f"{items}.answers.jsonl"
    with file.open("w") as lines:
        for (number, name, role, level), text in zip(design.iter_rows(), texts, strict=True):
            metadata = {"name": name, "role": role, "template_id": 0, "qualification_level": level.upper()}
            line = {"probe": "hiring_an", "item_id": str(number), "metadata": metadata, "answers": [text]}
            lines.write(json.dumps(line) + "\n")
    _, output = run([str(GENDERBENCH), str(REFERENCE), str(file), "--passes", "3"])
    theirs = json.loads(output)
    cycles = round(theirs["evaluating_seconds"] + 1000 * theirs["pass_seconds"], 1)
    what = "1,000 replicates, vs GenderBench's calculator (extrapolated from three cycles)"
    return compared("analyze", what, items, ours, Cost(seconds=cycles))
