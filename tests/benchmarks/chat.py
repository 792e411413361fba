"""chat: one call per question, compared with other clients at the same concurrency."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

from batchbench import emulator
from tests.benchmarks.compile import BATCHBENCH
from tests.benchmarks.measure import Cost, Result, compared, run

AT_ONCE = 32
RAW = """
import asyncio, json, sys
import aiohttp, polars as pl
prompts = pl.read_parquet(f"{sys.argv[1]}/*.parquet")["prompt"].head(int(sys.argv[2])).to_list()
url, token, at_once = sys.argv[3], sys.argv[4], int(sys.argv[5])
async def main():
    queue, answers = iter(enumerate(prompts)), {}
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session:
        async def worker():
            for number, prompt in queue:
                body = {"model": "random", "messages": [{"role": "user", "content": prompt}]}
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    answers[number] = (await response.json())["choices"][0]["message"]["content"]
        await asyncio.gather(*(worker() for _ in range(at_once)))
    assert len(answers) == len(prompts)
asyncio.run(main())
"""
OFFICIAL = """
import asyncio, sys
import openai, polars as pl
prompts = pl.read_parquet(f"{sys.argv[1]}/*.parquet")["prompt"].head(int(sys.argv[2])).to_list()
async def main():
    gate, client = asyncio.Semaphore(int(sys.argv[5])), openai.AsyncOpenAI(base_url=sys.argv[3], api_key=sys.argv[4])
    async def ask(prompt):
        async with gate:
            answer = await client.chat.completions.create(
                model="random", messages=[{"role": "user", "content": prompt}]
            )
            return answer.choices[0].message.content
    assert len(await asyncio.gather(*map(ask, prompts))) == len(prompts)
asyncio.run(main())
"""

LITELLM = """
import asyncio, sys
import litellm, polars as pl
prompts = pl.read_parquet(f"{sys.argv[1]}/*.parquet")["prompt"].head(int(sys.argv[2])).to_list()
async def main():
    gate = asyncio.Semaphore(int(sys.argv[5]))
    async def ask(prompt):
        async with gate:
            answer = await litellm.acompletion(
                model="openai/random", messages=[{"role": "user", "content": prompt}],
                api_base=sys.argv[3], api_key=sys.argv[4],
            )
            return answer.choices[0].message.content
    assert len(await asyncio.gather(*map(ask, prompts))) == len(prompts)
asyncio.run(main())
"""
CURATOR = """
import os, sys
import polars as pl
from bespokelabs import curator
prompts = pl.read_parquet(f"{sys.argv[1]}/*.parquet")["prompt"].head(int(sys.argv[2])).to_list()
os.environ["OPENAI_API_KEY"] = sys.argv[4]  # the only place where it looks for it
asker = curator.LLM(
    model_name="openai/random",
    backend="litellm",  # its own way to OpenAI fetches a tokenizer from elsewhere
    backend_params={
        "base_url": sys.argv[3], "max_concurrent_requests": int(sys.argv[5]),
        "max_requests_per_minute": 10**6, "max_tokens_per_minute": 10**9,
    },
)
assert len(asker(prompts).dataset) == len(prompts)
"""
HERE = {
    "a raw aiohttp loop": RAW,
    "the official client behind a semaphore": OFFICIAL,
}  # packages that the tests need anyway
PEERS = {"litellm": LITELLM, "bespokelabs-curator": CURATOR}  # packages that are installed for this benchmark only
# No package may download price lists, send telemetry or reuse answers of an earlier run.
ALONE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TELEMETRY_ENABLED": "0",
    "CURATOR_DISABLE_CACHE": "1",
    "HF_HUB_OFFLINE": "1",
}


def chat(home: Path, *, full: bool) -> list[Result]:
    """Ask 9,999 or 3,999 of isear's questions one by one; the emulator's rate limit is 10,000 per minute."""
    items = 3_333 if full else 1_333
    _, output = run([*BATCHBENCH, "compile", "isear", "--home", str(home), "--json", "--quiet"])
    (document,) = json.loads(output)
    server = emulator.start(home / "emulator", arguments=["--home", str(home)])
    count = items * 3
    arguments = [document["manifest"], str(count), server.openai, server.token, str(AT_ONCE)]
    try:
        words = ["--model", f"chat:random@{server.openai}", "--sample-k", str(items), "--price", "0,0"]
        mine = [*BATCHBENCH, "run", "isear", *words, "--home", str(home), "--quiet", "--json"]
        ours, _ = run(mine, {"CHAT_API_KEY": server.token})
        results = []
        for name, script in HERE.items():
            cost, _ = run([sys.executable, "-c", script, *arguments])
            results.append(compared("chat", _beside(name, count, ours, cost), count, ours, cost, per="cpu_seconds"))
        for name, script in PEERS.items() if full else ():
            other = _peer(home / name, name, [script, *arguments])
            what = f"vs {name}: {other}" if isinstance(other, str) else _beside(name, count, ours, other)
            theirs = None if isinstance(other, str) else other
            results.append(compared("chat", what, count, ours, theirs, per="cpu_seconds"))
    finally:
        os.kill(server.pid, 15)
    return results


def _beside(name: str, count: int, ours: Cost, other: Cost) -> str:
    mine, theirs = (f"{1000 * (cost.cpu_seconds or 0) / count:.2f} ms" for cost in (ours, other))
    speeds = f"{count / ours.seconds:.0f} and {count / other.seconds:.0f} requests/s"
    return f"vs {name}: {speeds}, CPU of a request {mine} and {theirs}, with the start"


def _peer(folder: Path, package: str, words: list[str]) -> Cost | str:
    """The cost of a package in its own environment, or the reason why it cannot be measured."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", package, "polars"]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        return "not measured, because pip cannot install it here"
    try:
        return run([python, "-c", *words], {**ALONE, "CURATOR_CACHE_DIR": str(folder / "kept")})[0]
    except RuntimeError:
        return "not measured, because it did not get to the end"
