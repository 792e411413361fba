"""lines: the client's cost to encode a request and read its result, compared with a bare msgspec loop."""

import sys
from pathlib import Path

from tests.benchmarks.compile import compiled
from tests.benchmarks.measure import Cost, Result, compared, run

# What the dispatcher does with a shard: prompts to priced requests, then result lines to answers on disk. The results
# of one shard are read repeatedly in place of those of other shards.
PREPARE = """
import sys
from pathlib import Path
from types import SimpleNamespace
import msgspec
from batchbench.compile.manifest import read_manifest
from batchbench.runs import results
from batchbench.dispatch.learning import Terms
from batchbench.dispatch.submit import encode
from batchbench.runs.ingest import ingest
from batchbench.runs.journal import BatchRecord
from batchbench.core.money import Price
from batchbench.providers import openai, openai_wire
from batchbench.runs.folder import Run
from batchbench.core.store import Store
from batchbench.providers.target import Target
home, folder, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store, provider, target = Store(home), openai.PROVIDER, Target(provider="openai", model="random", max_tokens=300)
price = Price(input=100_000, output=400_000, source="")
run = Run(home / "run", store, folder, read_manifest(folder), target)
account = SimpleNamespace(run=run, limits=provider.limits, plan=SimpleNamespace(price=price))
nonce, kept = "0123456789", home / "results.jsonl.zst"
"""
ANSWER = (
    PREPARE
    + """
from batchbench.emulator.dialects.openai.codec import OpenAICodec
from batchbench.emulator.personas.respond import find_persona
from batchbench.runs.results import zstd
codec = OpenAICodec("batch", 0.0, 0, lambda model: find_persona(model, home))
chunk = encode(account, provider, nonce, 0, [(0, 50_000)], None, Terms())
with zstd.open(kept, "wb") as file:
    file.writelines(codec.answer(line).line + b"\\n" for line in chunk.requests)
"""
)
OURS = (
    PREPARE
    + """
(home / "run/answers").mkdir(parents=True, exist_ok=True)
for first in range(0, count, 50_000):
    chunk = encode(account, provider, nonce, 0, [(first, min(first + 50_000, count))], None, Terms())
    chunk = None
    last = min(50_000, count - first)
    batch = BatchRecord(nonce=nonce, rep=0, ranges=[(0, last)], rows=last, reserve=10**9, rates=price, intended=0.0)
    found = ingest([kept], batch, provider)
    assert found.answers.height == last, found
    results.write_answers(run, f"{first:010}", found.answers)
"""
)
BARE = (
    PREPARE
    + """
encode, decode = provider.encoder(target), msgspec.json.Decoder(openai_wire.Answered).decode
texts = list(results.lines(kept))
for first in range(0, count, 50_000):
    rows = min(50_000, count - first)
    for row, prompt in enumerate(run.prompts(first, first + rows)):
        encode(f"{nonce}-{row}-0", prompt)
    for text in texts[:rows]:
        decode(text)
"""
)


def lines(home: Path, *, full: bool) -> list[Result]:
    """Encode and read back 50,000 requests, 500,000, and all of HiringAn."""
    _, folder, prompts = compiled(home)
    run([sys.executable, "-c", ANSWER, str(home), str(folder), "50000"])
    results = []
    for count in (50_000, 500_000, prompts) if full else (50_000, 500_000):
        costs = [net(home, folder, script, count) for script in (OURS, BARE)]
        results.append(compared("lines", "out and back, vs a bare msgspec loop", count, *costs, per="cpu_seconds"))
    return results


def net(home: Path, folder: Path, script: str, count: int) -> Cost:
    """The cost of a script without its imports."""
    words = [str(home), str(folder)]
    start, _ = run([sys.executable, "-c", PREPARE, *words, "0"])
    whole, _ = run([sys.executable, "-c", script, *words, str(count)])
    assert start.cpu_seconds is not None
    assert whole.cpu_seconds is not None
    return Cost(
        seconds=round(whole.seconds - start.seconds, 3),
        cpu_seconds=round(whole.cpu_seconds - start.cpu_seconds, 3),
        peak_mb=whole.peak_mb,
    )
