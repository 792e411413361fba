"""Command line of the emulator, shared by `batchbench emulate` and `python -m batchbench.emulator`.

Standard library only until the emulator really starts, so that `--help` is quick.
"""

import argparse
import os
import secrets
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from batchbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from batchbench.emulator.server.context import Settings
    from batchbench.emulator.server.limits import Price

TOKEN = "BATCHBENCH_EMULATOR_TOKEN"  # noqa: S105 - the name of a variable, not a token

DESCRIPTION = """\
A server on 127.0.0.1 that speaks the OpenAI and Anthropic batch APIs. Models are personas, time can be moved, faults
can be planted, and a ledger records everything that was accepted and paid for. Nothing leaves this machine.

personas
  The model name of a request chooses who answers: echo, unbiased, random, stereotyping, anti-stereotyping,
  pro-masculine, pro-feminine, refusing, silent, planted/X. For example, with the address and key that are printed:

    curl $OPENAI_BASE_URL/chat/completions -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
      -d '{"model": "echo", "messages": [{"role": "user", "content": "Who are you?"}]}'

faults
  --faults FILE holds one JSON object per line: {"do": FAULT, "on": CALL, "p": SHARE, "nth": [..] | "first": N,
  "key": REGEX, "dialect": .., "seconds": .., "value": ..}; only "do" is required, # begins a comment line. A fault is
  decided by the seed, the rule, the call, its key (the text before the first dash of custom ids and file names, or
  the batch id; a digest of the prompt for synchronous calls; the custom id for result lines) and how often the key
  has had that call, so it comes again in the next run. For example, to accept every third create and lose the reply,
  and to drop one result line in a hundred:

    {"do": "reset-after", "on": "create", "p": 0.33}
    {"do": "line-missing", "p": 0.01}

  --list-faults prints all of them.

time and control (with the same key)
  POST /__emu/clock {"advance": 90000}    let 25 hours pass
  GET  /__emu/clock, /__emu/stats, /__emu/ledger

money
  An answer costs ceil((input tokens * IN + output tokens * OUT) / 1,000,000) micro-dollars, IN and OUT being
  micro-dollars per million tokens; synchronous calls cost twice that. A prompt has one token per 4 bytes, plus 4 per
  message and 3 per request; an answer one more than it has spaces and line breaks.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.epilog = f"The key is new for every start; set {TOKEN} to choose it, for example to keep it over a restart."
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--home", type=Path, metavar="DIR", help="where cache/ is (default: BATCHBENCH_HOME or here)")
    parser.add_argument("--state", type=Path, metavar="DIR", help="state folder (default: HOME/cache/emulator)")
    parser.add_argument(
        "--ledger", type=Path, metavar="FILE", help="ledger (default: ledger.jsonl in the state folder)"
    )
    parser.add_argument("--faults", type=Path, metavar="FILE", help="fault rules, one JSON object per line")
    parser.add_argument("--list-faults", action="store_true", help="print every fault with one line about it, and end")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides answers, faults, order of results")
    parser.add_argument("--price", default="0.075,0.30", metavar="IN,OUT", help="batch price, USD per million tokens")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="NAME=N", help="override a limit, e.g. requests=100"
    )
    parser.add_argument(
        "--delay",
        action="append",
        default=[],
        metavar="STATE=SECONDS",
        help="virtual time spent validating, processing, finalizing or cancelling (default: 0)",
    )
    parser.add_argument("--idle-exit", type=float, metavar="SECONDS", help="end when nobody has called for so long")
    parser.add_argument("--json", action="store_true", help="print one JSON line when ready")


def run(args: argparse.Namespace) -> int:
    """Serve until stopped, or print the catalogue."""
    if args.list_faults:
        from batchbench.emulator.faults.catalogue import listing

        print(listing())  # noqa: T201 - what was asked for
        return 0
    from batchbench.emulator.server import server

    as_json = bool(args.json)
    server.serve(settings(args), lambda endpoint: server.announce(endpoint, as_json=as_json))
    return 0


def settings(args: argparse.Namespace) -> "Settings":
    """The command line as settings, or a usage error."""
    from batchbench.emulator.faults import read_rules
    from batchbench.emulator.server.context import Settings
    from batchbench.emulator.server.limits import Delays, Limits

    home: Path = args.home or Path(os.environ.get("BATCHBENCH_HOME", "."))
    state: Path = (args.state or home / "cache" / "emulator").absolute()
    ledger: Path = args.ledger.absolute() if args.ledger else state / "ledger.jsonl"
    if not 0 <= args.port <= 65_535:
        raise UsageError(f"--port {args.port}: a port lies between 0 and 65535")
    if args.idle_exit is not None and not args.idle_exit > 0:
        raise UsageError("--idle-exit: a number of seconds above 0")
    return Settings(
        home=home,
        state=state,
        ledger=ledger,
        token=os.environ.get(TOKEN) or "emu-" + secrets.token_hex(16),
        port=args.port,
        seed=args.seed,
        limits=_overridden(Limits, args.limit, "limit"),
        delays=_overridden(Delays, args.delay, "delay"),
        price=price(args.price),
        rules=read_rules(args.faults) if args.faults else [],
        idle_exit=args.idle_exit,
    )


def price(text: str) -> "Price":
    """`IN,OUT` in dollars per million tokens, as micro-dollars."""
    from batchbench.emulator.server.limits import Price

    micro: list[int] = []
    for part in text.split(","):
        try:
            exact = Decimal(part) * 1_000_000
            micro += [int(exact)] if 0 <= exact == int(exact) else []
        except (InvalidOperation, ValueError, OverflowError):
            continue
    if len(micro) != 2 or text.count(",") != 1:
        raise UsageError(f"--price {text!r}: expected IN,OUT in dollars per million tokens, e.g. 0.075,0.30")
    return Price(input=micro[0], output=micro[1])


S = TypeVar("S")


def _overridden(kind: type[S], pairs: list[str], what: str) -> S:
    """A Struct with some of its numbers replaced."""
    import msgspec

    known = [field.name for field in msgspec.structs.fields(kind)]  # type: ignore[arg-type]
    given: dict[str, float | None] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name not in known:
            raise unknown(what, name, known)
        try:
            number = None if text == "none" else float(text)
        except ValueError:
            number = -1.0
        if not equals or (number is not None and not 0 <= number < float("inf")):
            raise UsageError(f"--{what} {pair!r}: expected {name}=NUMBER")
        given[name] = int(number) if number is not None and number.is_integer() else number
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"--{what}: {error}") from None
