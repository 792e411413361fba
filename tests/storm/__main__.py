"""One storm from the command line."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.dispatch.scene import DIALECTS, PROBE, Scene
from tests.storm import __doc__ as description
from tests.storm.storm import RULES, TROUBLES, Storm


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.storm", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dialect", choices=DIALECTS, default="openai")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--troubles", action="store_true", help="old journals, snapshots, other keys and wrong clocks")
    args = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.0f} s  {text}", flush=True)  # noqa: T201

    # The folder is kept, so that a failure can be examined.
    folder = Path(tempfile.mkdtemp(prefix=f"storm-{args.dialect}-{args.seed}-"))
    say(f"{args.dialect}, {args.requests:,} requests, {args.kills} kills, seed {args.seed}, in {folder}")
    line = [sys.executable, "-m", "batchbench", "compile", *PROBE, "--home", str(folder / "compiled")]
    subprocess.run(line, check=True, capture_output=True)
    scene = Scene(
        folder / "scene", folder / "compiled" / "manifests", args.dialect, "--seed", str(args.seed), rules=RULES
    )
    try:
        storm = Storm(scene, args.requests, args.kills, args.seed, say, TROUBLES if args.troubles else ())
        storm.blow()
        storm.report()
        verdict = storm.verdict()
    finally:
        scene.close()
    say(json.dumps(verdict, indent=1))
    enough = storm.dead.total() >= args.kills
    say("PASS" if enough else f"everything was answered after {storm.dead.total()} kills: ask for more requests")
    return 0 if enough else 1


if __name__ == "__main__":
    raise SystemExit(main())
