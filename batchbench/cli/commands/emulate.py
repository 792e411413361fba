"""`batchbench emulate`: run the emulator in the foreground."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from batchbench.cli import options
from batchbench.cli.terminal import show
from batchbench.emulator import PERSONAS, TOKEN_VARIABLE, is_persona
from batchbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from batchbench.emulator.server.context import Settings
    from batchbench.emulator.server.server import Endpoint

DESCRIPTION = """\
A server on 127.0.0.1 that speaks the OpenAI and Anthropic batch APIs. Its models are personas, its clock can be moved
forward, it can inject faults, and its ledger records everything that it accepted and billed. It sends nothing to other
machines.

personas
  The model name of a request selects the persona: echo, unbiased, random, stereotyping, anti-stereotyping,
  pro-masculine, pro-feminine, refusing, silent, planted/X. For example, with the address and key that are printed:

    curl $OPENAI_BASE_URL/chat/completions -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
      -d '{"model": "echo", "messages": [{"role": "user", "content": "Who are you?"}]}'

families
  A model name can also be the name of a real model, alone (then --persona answers) or before a persona:
  gpt-6.1-sol, claude-opus-5-5/stereotyping. Such a model accepts and refuses the parameters that the real one does, and
  thinks by default if the real one does. Thoughts are billed and count within the token limit of the request; if they
  use it up, the answer has no text. Tokens of thoughts by effort: minimal 8-60, low 80-400, medium 200-1500,
  high 500-4000, xhigh 1000-8000, max 2000-16000. Local models think in the text or beside it: local-think,
  local-think-open, local-reasoning, local-harmony, local-harmony-stripped. GET /models lists all names.

faults
  --faults FILE holds one rule per line, as a JSON object: {"do": FAULT, "on": CALL, "p": SHARE, "nth": [..] or
  "first": N, "since": N, "key": REGEX, "dialect": .., "seconds": .., "value": ..}. Only "do" is required. A line that
  starts with # is a comment. "since" skips the first calls of a kind, or the result lines of the first batches. Whether
  a rule applies to a call depends only on the seed, the rule, the call, the call's key, and how often this key has made
  this call, so the same run gets the same faults again. The key is the text before the first dash of custom ids and
  file names, or the batch id; a digest of the prompt for synchronous calls; the custom id for result lines.
  For example, accept a third of the creates but send no reply, drop one result line in a hundred, empty half of the
  answers from the third batch on, and send synchronous replies without token counts:

    {"do": "reset-after", "on": "create", "p": 0.33}
    {"do": "line-missing", "p": 0.01}
    {"do": "line-empty", "p": 0.5, "since": 3}
    {"do": "line-usage-null", "on": ["chat", "messages"]}

  --list-faults prints all faults.

time and control (with the same key)
  POST /__emu/clock {"advance": 90000}    move the clock 25 hours forward
  GET  /__emu/clock, /__emu/stats, /__emu/ledger

prices
  An answer costs ceil((input tokens * IN + output tokens * OUT) / 1,000,000) micro-dollars. IN and OUT are
  micro-dollars per million tokens. Synchronous calls cost twice as much. A prompt has one token per 4 bytes, plus 4 per
  message and 3 per request. The tokens of an answer are its spaces and line breaks plus one.
"""
EPILOG = f"Every start makes a new key. Set {TOKEN_VARIABLE} to choose the key, for example to keep it after a restart."


def add(commands: options.Subparsers) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "emulate",
        help="serve the providers' batch APIs on this machine, without a key",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    option = parser.add_argument
    option("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: any free port)")
    option("--home", type=Path, metavar="DIR", help="folder of cache/ (default: BATCHBENCH_HOME or the current folder)")
    option("--state", type=Path, metavar="DIR", help="state folder (default: HOME/cache/emulator)")
    option("--ledger", type=Path, metavar="FILE", help="ledger file (default: ledger.jsonl in the state folder)")
    option("--faults", type=Path, metavar="FILE", help="fault rules, one JSON object per line")
    option("--list-faults", action="store_true", help="print every fault with a one-line description, then exit")
    option("--seed", type=int, default=0, metavar="N", help="seed of answers, faults and the order of results")
    option("--persona", default="random", metavar="NAME", help="who answers as a family (default: random)")
    option("--price", default="0.075,0.30", metavar="IN,OUT", help="batch price in dollars per million tokens")
    option("--limit", action="append", default=[], metavar="NAME=N", help="override a limit, e.g. requests=100")
    option(
        "--delay",
        action="append",
        default=[],
        metavar="STATE=SECONDS",
        help="virtual seconds in a state: validating, processing, finalizing or cancelling (default: 0)",
    )
    option("--idle-exit", type=float, metavar="SECONDS", help="exit after this many seconds without a call")
    option("--json", action="store_true", help="print one JSON line when ready")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, or print the faults."""
    if args.list_faults:
        from batchbench.emulator.faults.catalogue import listing

        show(listing())
        return 0
    from batchbench.emulator.server.server import serve

    serve(_settings(args), _print_json if args.json else _print_text)
    return 0


def _settings(args: argparse.Namespace) -> "Settings":
    import secrets

    from batchbench.core.money import parse_price
    from batchbench.emulator.faults.rules import read_rules
    from batchbench.emulator.server.context import Settings
    from batchbench.emulator.server.limits import Delays, EmulatorLimits

    if not 0 <= args.port <= 65_535:
        raise UsageError(f"--port {args.port} is not a port: give a number from 0 to 65535")
    if args.idle_exit is not None and not args.idle_exit > 0:
        raise UsageError(f"--idle-exit {args.idle_exit:g} is not a number of seconds above 0")
    if not is_persona(args.persona):
        raise unknown("persona", args.persona, PERSONAS)
    home: Path = args.home or Path(os.environ.get("BATCHBENCH_HOME", "."))
    state: Path = (args.state or home / "cache" / "emulator").absolute()
    return Settings(
        home=home,
        state=state,
        ledger=args.ledger.absolute() if args.ledger else state / "ledger.jsonl",
        token=os.environ.get(TOKEN_VARIABLE) or "emu-" + secrets.token_hex(16),
        port=args.port,
        seed=args.seed,
        limits=_with_overrides(EmulatorLimits, args.limit, "limit"),
        delays=_with_overrides(Delays, args.delay, "delay"),
        price=parse_price(args.price),
        persona=args.persona,
        rules=read_rules(args.faults) if args.faults else [],
        idle_exit=args.idle_exit,
    )


S = TypeVar("S")


def _with_overrides(kind: type[S], pairs: list[str], option: str) -> S:
    """A Struct of numbers with the values of `NAME=NUMBER` pairs; `NAME=none` means no limit."""
    import msgspec

    known = [field.name for field in msgspec.structs.fields(kind)]  # type: ignore[arg-type]
    values: dict[str, float | None] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name not in known:
            raise unknown(option, name, known)
        try:
            number = None if text == "none" else float(text)
        except ValueError:
            number = -1.0
        if not equals or (number is not None and not 0 <= number < float("inf")):
            raise UsageError(f"--{option} {pair!r}: expected {name}=NUMBER")
        values[name] = int(number) if number is not None and number.is_integer() else number
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"--{option}: {error}") from None


def _print_json(endpoint: "Endpoint") -> None:
    import json

    _print(json.dumps({name: getattr(endpoint, name) for name in ("openai", "anthropic", "token", "ledger")}))


def _print_text(endpoint: "Endpoint") -> None:
    _print(
        f"OpenAI base URL     {endpoint.openai}\n"
        f"Anthropic base URL  {endpoint.anthropic}\n"
        f"Key                 {endpoint.token}\n"
        f"Ledger              {endpoint.ledger}\n"
        "EMULATED: no model is asked and nothing is paid. Stop with Ctrl-C."
    )


def _print(text: str) -> None:
    """Print without masking keys: a client needs the token."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
