"""`batchbench run PROBE... --model M...`"""

import argparse
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.commands import estimate
from batchbench.cli.terminal import Terminal, ask_to_go_on, complain, show, show_json

if TYPE_CHECKING:
    from batchbench.app.run import RunResult

DESCRIPTION = """\
Send the prompts of a probe to models, through their batch APIs. The same command again resumes: it checks the state of
every batch, keeps all answers, and asks only the missing requests.

  batchbench run hiring_an --model sim:random                        the emulator, no key
  batchbench run isear gest --model openai:gpt-6-luna --budget 5   at most five dollars
  batchbench run hiring_an --model anthropic:claude-haiku-5-5 --sample-k 20000 --repetitions 2

Models: openai:MODEL, anthropic:MODEL, chat:MODEL@http://HOST/v1 (any OpenAI-compatible server), mlm:NAME_OR_FOLDER (a
masked language model on this machine, with the extra `mlm`), sim:PERSONA or sim:anthropic/PERSONA (the emulator;
`batchbench emulate --help` names the personas). Keys come from the environment:
OPENAI_API_KEY, ANTHROPIC_API_KEY, CHAT_API_KEY. A run that probably costs more than $1 and has no budget shows its
estimate and asks first. Ctrl-C stops; submitted batches keep running at the provider. A chat: server gets single calls:
calls in flight when the program is killed are made again, and each counts twice at most.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "run", run, help="ask models; also resumes", description=DESCRIPTION)
    parser.add_argument("--yes", action="store_true", help="do not ask before spending more than $1 without --budget")
    parser.add_argument("--collect", action="store_true", help="buy nothing, only collect the answers of open batches")
    options.add_purchase(parser)
    options.add_models(parser)


def run(args: argparse.Namespace) -> int:
    from batchbench.app.requests import Options, Purchase
    from batchbench.app.run import ask, prepare_runs

    request = options.selection(args), options.struct(Options, args), options.struct(Purchase, args)
    store, terminal = options.store(args), Terminal(quiet=args.quiet)
    prepared = prepare_runs(*request, store, terminal)
    if prepared.question:
        table = f"{estimate.table(prepared.estimates)}\n\n"
        ask_to_go_on(prepared.question, "allow it with --yes, or limit it with --budget USD", table)
    finished = ask(prepared.runs, prepared.purchase, store, terminal)
    if args.json:
        show_json([result for result, _ in finished])
    elif not args.quiet:
        for result, _ in finished:
            show(_summary(result))
            if result.lost_calls:
                show(_lost_calls(result))
    return complain([error for _, error in finished])


def _lost_calls(result: "RunResult") -> str:
    from batchbench.core.money import MILLION, dollars

    counted = f", counted at {dollars(round(result.lost_calls_usd * MILLION))}" if result.priced else ""
    return f"{result.lost_calls:,} calls were lost in a kill and made again{counted}"


def _summary(result: "RunResult") -> str:
    from batchbench.core.money import MILLION, dollars

    spent = f"{dollars(round(result.spent_usd * MILLION))} spent" if result.priced else "not priced"
    stamps = ["EMULATED"] * result.emulated + ["SAMPLE DATA"] * result.sample_data
    return (
        f"{result.probe} {result.model}: {result.answered:,} of {result.asked:,} answered, {result.refused:,} refused, "
        f"{result.failed:,} failed, {f'{result.empty:,} empty, ' if result.empty else ''}{result.missing:,} missing, "
        f"{spent} ({result.seconds:.1f} s) in {result.run}"
        f"  {' '.join(stamps)}"
    ).rstrip()
