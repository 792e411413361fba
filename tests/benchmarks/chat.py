"""chat: one call per question, against a raw aiohttp loop and the official client at the same concurrency."""

import json
import os
import sys
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


def chat(home: Path, *, full: bool) -> list[Result]:
    """Ask isear's questions one by one: 20,000 of them, or 4,000."""
    items = 6_666 if full else 1_333
    _, output = run([*BATCHBENCH, "compile", "isear", "--home", str(home), "--json", "--quiet"])
    (document,) = json.loads(output)
    server = emulator.start(home / "emulator", arguments=["--home", str(home)])
    count = items * 3
    try:
        words = ["--model", f"chat:random@{server.openai}", "--sample-k", str(items), "--price", "0,0"]
        mine = [*BATCHBENCH, "run", "isear", *words, "--home", str(home), "--quiet", "--json"]
        ours, _ = run(mine, {"CHAT_API_KEY": server.token})
        arguments = [document["manifest"], str(count), server.openai, server.token, str(AT_ONCE)]
        others = {"a raw aiohttp loop": RAW, "the official client behind a semaphore": OFFICIAL}
        costs: dict[str, Cost] = {
            name: run([sys.executable, "-c", script, *arguments])[0] for name, script in others.items()
        }
    finally:
        os.kill(server.pid, 15)
    return [
        compared("chat", f"vs {name}, both with their start", count, ours, cost, per="cpu_seconds")
        for name, cost in costs.items()
    ]
