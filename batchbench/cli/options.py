"""The options that say which probes are asked of whom; light, because every start of the program imports it."""

import argparse
from collections.abc import Callable

MOST_REPETITIONS = 65_535


def add(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument("probes", nargs="+", metavar="PROBE", help="see `batchbench probes`; `all` for every one")
    parser.add_argument("--model", action="append", required=True, dest="models", metavar="M", help="whom to ask")
    parser.add_argument(
        "--set", action="append", default=[], metavar="K=V", dest="settings", help="a probe's parameter"
    )
    parser.add_argument("--sample-k", metavar="N", help="ask the first N items, or all (default: the probe's own)")
    parser.add_argument("--repetitions", type=repeated, default=1, metavar="R", help="ask every prompt R times")
    parser.add_argument("--price", metavar="IN,OUT", help="batch price in dollars per million tokens")
    parser.add_argument("--base-url", metavar="URL", help="another address than the provider's own")
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="the longest answer (default: the probe's)")
    parser.add_argument("--temperature", type=between(0, 2), metavar="T", help="default: the provider's own")
    parser.add_argument("--top-p", type=between(0, 1), metavar="P", help="default: the provider's own")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="at most N requests in a batch")
    parser.add_argument("--settle", type=between(0, 86_400), metavar="SECONDS", help=argparse.SUPPRESS)


def add_buying(parser: argparse.ArgumentParser) -> None:
    """Declare those that say what may be bought."""
    parser.add_argument("--budget", metavar="USD", help="spend at most this, over all runs of this command")
    parser.add_argument("--detach", action="store_true", help="submit, do not wait: the same command collects later")
    parser.add_argument("--adopt", action="store_true", help="go on in a copied or restored run: no other copy buys")
    parser.add_argument("--rebuy-missing", action="store_true", help="ask again what a provider lost, maybe paid")
    parser.add_argument(
        "--resolve",
        action="append",
        default=[],
        metavar="NONCE=ANSWER",
        help="settle what nobody can tell: void, or the id of the batch at the provider's",
    )
    parser.add_argument(
        "--trial",
        choices=["auto", "always", "never"],
        default="auto",
        help="ask one harmless question before the first batch (auto: unless the server is on this machine)",
    )


def defaults() -> argparse.Namespace:
    """What all of these options are when nobody says anything."""
    parser = argparse.ArgumentParser()
    add(parser)
    add_buying(parser)
    return parser.parse_args(["", "--model", ""])


def positive(text: str) -> int:
    """A whole number above zero, and not of astronomical size."""
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def repeated(text: str) -> int:
    """How often everything is asked."""
    if positive(text) > MOST_REPETITIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_REPETITIONS:,}")
    return int(text)


def between(low: float, high: float) -> Callable[[str], float]:
    """A number within bounds, both included."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return value

    return number
