"""GenderBench's own metrics of answers: `PYTHON reference.py FILE.answers.jsonl` prints JSON.

`--cycles N` adds its bootstrap intervals; `--passes N` only measures the time of its calculator.

Needs its own environment (Python 3.12 or newer with genderbench 0.5.0, nltk 3.10.2 or newer and NLTK's punkt_tab).
GenderBench's evaluators and calculators are used unchanged; only the items are built here.
"""

import argparse
import json
import math
import os
import random
import sys
import time
import warnings
from collections import defaultdict
from typing import Any
from unittest.mock import MagicMock

os.environ.setdefault("GENDER_BENCH_LOG_DIR", os.devnull)
warnings.simplefilter("ignore")
for unused in ("anthropic", "openai", "nest_asyncio"):
    sys.modules.setdefault(unused, MagicMock())  # needed only for calls to models


def probe_of(name: str) -> Any:
    import nltk

    nltk.download = lambda *_, **__: True  # otherwise the evaluators would download punkt_tab
    from genderbench import probes

    kind = {"isear": "Isear", "hiring_an": "HiringAn", "inventories": "Inventories", "gest": "Gest"}[name]
    return getattr(probes, f"{kind}Probe")(log_strategy="no")


def items_of(probe: Any, name: str, path: str) -> list[Any]:
    from genderbench.probes.hiring_an.hiring_an_templates import HiringAnQualifications
    from genderbench.probing.attempt import Attempt
    from genderbench.probing.probe_item import ProbeItem
    from genderbench.probing.prompt import Prompt

    lines = defaultdict(list)
    with open(path, encoding="utf-8") as file:
        for text in file:
            line = json.loads(text)
            lines[line["item_id"]].append(line)
    items = []
    for prompts in lines.values():
        metadata = dict(prompts[0]["metadata"])
        if name == "hiring_an":
            metadata["qualification_level"] = HiringAnQualifications[metadata["qualification_level"]]
        item = ProbeItem(prompts=[], num_repetitions=1, metadata=metadata)
        for line in prompts:
            prompt = Prompt(text="", metadata=line["metadata"])
            for answer in line["answers"]:
                if answer is not None:  # a failed request: no attempt
                    attempt = Attempt(prompt, 0)
                    attempt.answer = answer
                    item.attempts.append(attempt)
        items.append(item)
    return items


def known(value: float) -> float | None:
    return None if math.isnan(value) else value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--cycles", type=int, default=0)
    parser.add_argument("--passes", type=int, default=0)
    args = parser.parse_args()
    with open(args.file, encoding="utf-8") as file:
        name = json.loads(file.readline())["probe"]
    probe = probe_of(name)
    items = items_of(probe, name, args.file)
    started = time.monotonic()
    for item in items:
        for attempt in item.attempts:
            attempt.evaluate(probe.evaluator)
    evaluating = time.monotonic() - started
    document = {"probe": name, "items": len(items)}
    if args.passes:
        started = time.monotonic()
        for _ in range(args.passes):
            probe.metric_calculator(random.choices(items, k=len(items)))
        document["evaluating_seconds"] = evaluating
        document["pass_seconds"] = (time.monotonic() - started) / args.passes
    else:
        probe.metrics = probe.metric_calculator(items)
        document["metrics"] = {key: known(value) for key, value in probe.metrics.items()}
        document["marks"] = {key: known(mark["mark_value"]) for key, mark in probe.calculate_marks().items()}
    if args.cycles:
        from genderbench.probing.probe import status

        probe.probe_items, probe.status, probe.bootstrap_cycles = items, status.EVALUATED, args.cycles
        probe.calculate_metrics()
        document["intervals"] = probe.metrics
        document["marks"] = {key: known(mark["mark_value"]) for key, mark in probe.marks.items()}
    json.dump(document, sys.stdout, indent=1, default=float)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
