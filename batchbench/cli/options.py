"""The options of several commands: declared once, and turned into the Structs of `app.requests`."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from batchbench.errors import UsageError

if TYPE_CHECKING:
    from batchbench.app.requests import S, Selection
    from batchbench.core.money import Limit
    from batchbench.core.store import Store

Subparsers = Any  # argparse does not name the type of what add_subparsers returns


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, with one line."""

    details: Callable[[], str] | None = None  # text at the end of --help that takes time to compute

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def format_help(self) -> str:
        """The help text."""
        if self.details:
            self.epilog = self.details()
        return super().format_help()


def command(
    commands: Subparsers, name: str, run: Callable[[argparse.Namespace], int], *, verb: bool = False, **texts: Any
) -> Parser:
    """Add a command, or a verb of one, with the options that every command has."""
    parser: Parser = commands.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    parser.set_defaults(run=run)
    # A verb sets no defaults, so that `data --json list` means the same as `data list --json`.
    absent: dict[str, Any] = {"default": argparse.SUPPRESS} if verb else {}
    parser.add_argument("--home", type=Path, metavar="DIR", help="the folder of manifests/ and cache/", **absent)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout", **absent)
    parser.add_argument("--quiet", action="store_true", help="print no progress and no messages, only errors", **absent)
    return parser


def add_probes(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Declare which probes, and their parameters."""
    number = "*" if optional else "+"
    parser.add_argument("probes", nargs=number, metavar="PROBE", help="see `batchbench probes`; `all` for every one")
    add_params(parser)


def add_params(parser: argparse.ArgumentParser) -> None:
    """Declare the parameters of probes."""
    parser.add_argument("--set", action="append", default=[], metavar="K=V", dest="params", help="a probe's parameter")


def add_models(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Declare which probes are run with which models, and how. `app.requests` checks the values."""
    add_probes(parser, optional=optional)
    default: dict[str, Any] = {"default": []} if optional else {"required": True}
    parser.add_argument("--model", action="append", dest="models", metavar="M", help="the model to ask", **default)
    parser.add_argument("--sample-k", metavar="N", help="ask the first N items, or all (default: the probe's own)")
    parser.add_argument("--repetitions", metavar="R", help="ask every prompt R times (1)")
    parser.add_argument("--price", metavar="IN,OUT", help="batch price in dollars per million tokens")
    parser.add_argument("--base-url", metavar="URL", help="another address than the provider's own")
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument(
        "--max-tokens", metavar="N", help="the longest answer (default: the probe's own; more to think)"
    )
    parser.add_argument("--temperature", metavar="T", help="from 0 to 2 (default: the provider's own)")
    parser.add_argument("--top-p", metavar="P", help="from 0 to 1 (default: the provider's own)")
    parser.add_argument("--effort", metavar="E", help="how much the model thinks: low, high ... (default: the least)")
    parser.add_argument(
        "--thinking", metavar="T", help="off (if possible, the default), on, default (the provider's), ..."
    )
    parser.add_argument(
        "--extra", action="append", metavar="KEY=JSON", help="one more field of the request, such as seed=1"
    )
    parser.add_argument("--batch-size", metavar="N", help="at most N requests in a batch")
    parser.add_argument("--timeout", metavar="SECONDS", help="wait this long for the answer to a call (600)")
    parser.add_argument("--proxy", metavar="URL", help="an http or https proxy for all calls")
    parser.add_argument("--allow-http", action="store_true", help="send the key to another machine without encryption")
    parser.add_argument("--settle", metavar="SECONDS", help=argparse.SUPPRESS)


def add_purchase(parser: argparse.ArgumentParser) -> None:
    """Declare what may be bought."""
    parser.add_argument(
        "--budget",
        type=_budget,
        metavar="USD",
        help="spend at most this, over all runs of this command; it stays until it is changed (none: no limit)",
    )
    parser.add_argument(
        "--budget-mode",
        choices=["absolute", "learnt"],
        default="absolute",
        help="how much is reserved for the input of a request: absolute (a token per byte; the budget is never "
        "exceeded) or learnt (5 %% more tokens per byte than any request of the run had so far; fewer rounds of "
        "batches, and only a provider that suddenly counts more tokens could exceed the budget)",
    )
    parser.add_argument("--detach", action="store_true", help="submit, do not wait: the same command collects later")
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="buy in a copied or restored run, if no other copy does; take batches of the same requests from others",
    )
    parser.add_argument("--anew", action="store_true", help="buy although the provider has batches of these requests")
    parser.add_argument("--again", action="store_true", help="ask requests again that were cancelled")
    parser.add_argument("--retry-failed", action="store_true", help="ask requests again that failed, maybe charged")
    parser.add_argument("--rebuy-missing", action="store_true", help="ask again what the provider lost, maybe charged")
    parser.add_argument(
        "--resolve",
        action="append",
        default=[],
        metavar="NONCE=ANSWER",
        help="decide about a batch in an unknown state: void, or its id at the provider",
    )
    parser.add_argument(
        "--pilot",
        choices=["auto", "batch", "none"],
        default="auto",
        help="before the first batch, ask about 20 prompts and check the answers: auto (as single calls, if the run "
        "costs money), batch (a small batch), none",
    )
    parser.add_argument(
        "--anyway", action="store_true", help="buy although answers cannot be read or cost more than estimated"
    )


def store(args: argparse.Namespace) -> "Store":
    """The folders this command works in."""
    from batchbench.core.store import Store

    return Store(args.home or Path(os.environ.get("BATCHBENCH_HOME") or "."))


def selection(args: argparse.Namespace) -> "Selection":
    """Which probes are run with which models."""
    from batchbench.app.requests import Selection

    return Selection(probes=args.probes, models=getattr(args, "models", []), params=params(args.params))


def params(words: Sequence[str]) -> dict[str, str]:
    """The parameters in `--set K=V`."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {word!r} is not of the form K=V")
        found[key] = value
    return found


def extra(words: Sequence[str]) -> dict[str, object]:
    """The fields in `--extra KEY=JSON`."""
    import msgspec

    found: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        try:
            if not equals or not key:
                raise ValueError
            found[key] = msgspec.json.decode(value)
        except ValueError:  # msgspec.DecodeError is one
            raise UsageError(f"--extra {word!r} is not KEY=JSON, such as seed=1, think=false or 'a=\"text\"'") from None
    return found


def struct(kind: "type[S]", args: argparse.Namespace, **values: object) -> "S":
    """A Struct made from the options with the names of its fields; `values` replace options of the command line."""
    from batchbench.app.requests import convert

    given = {name: getattr(args, name, None) for name in kind.__struct_fields__}
    if words := given.get("extra"):
        given["extra"] = extra(words)
    return convert(kind, given | values, lambda name: f"--{name.replace('_', '-')}")


def _budget(text: str) -> "Limit":
    from batchbench.core.money import parse_budget

    return parse_budget(text)
