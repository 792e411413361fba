"""`python -m tests.auditor`: one line per invariant; exit code 1 if one is violated."""

import argparse
import json
from pathlib import Path

from tests.auditor import __doc__ as description
from tests.auditor.invariants import INVARIANTS, audit, load


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.auditor",
        description=description,
        epilog="\n".join(f"{name}: {(check.__doc__ or '').splitlines()[0]}" for name, check in INVARIANTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("--ledger", "--run", "--manifest"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--budget", type=int, help="micro-dollars; default: the budget in the journal")
    parser.add_argument("--rebuys", type=int, default=0, help="how often the user typed --rebuy-missing")
    parser.add_argument("--unfinished", action="store_true", help="the run was killed, so batches may be open")
    parser.add_argument("--status", type=Path, help="one run's entry of `batchbench status --json`")
    parser.add_argument("--before", type=Path, help="`snapshot` of an earlier audit: nothing may have changed since")
    parser.add_argument("--key", default="", help="must not be in any file")
    parser.add_argument("--json", action="store_true")
    args = vars(parser.parse_args())
    as_json = args.pop("json")
    for name in ("status", "before"):
        args[name] = json.loads(args[name].read_bytes()) if args[name] else None
    found = audit(load(**args))
    if as_json:
        print(json.dumps(found, indent=1))  # noqa: T201
    else:
        for name, one in found["invariants"].items():
            problems = one["problems"]
            more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
            print(f"{name:32} {'FAIL' if problems else 'ok  '} {one['looked_at']}")  # noqa: T201
            for problem in problems[:5]:
                print(f"          {problem}")  # noqa: T201
            if more:
                print(f"         {more}")  # noqa: T201
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
