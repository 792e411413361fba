"""`batchbench run PROBE... --model M...`"""

import argparse
from typing import TYPE_CHECKING

from batchbench.cli import options
from batchbench.cli.terminal import Terminal, complain, show, show_json

if TYPE_CHECKING:
    from batchbench.app.run import RunResult

DESCRIPTION = """\
Send the prompts of a probe to models, through their batch APIs. The same command again resumes: it checks the state of
every batch, keeps all answers, and asks only the missing requests.

  batchbench run hiring_an --model sim:random                        the emulator, no key
  batchbench run isear gest --model openai:gpt-4.1-mini --budget 5   at most five dollars
  batchbench run hiring_an --model anthropic:claude-haiku-4-5 --sample-k 20000 --repetitions 2

Models: openai:MODEL, anthropic:MODEL, chat:MODEL@http://HOST/v1 (any OpenAI-compatible server), mlm:NAME_OR_FOLDER (a
masked language model on this machine, with the extra `mlm`), sim:PERSONA or sim:anthropic/PERSONA (the emulator;
`batchbench emulate --help` names the personas). Keys come from the environment:
OPENAI_API_KEY, ANTHROPIC_API_KEY, CHAT_API_KEY. Ctrl-C stops; submitted batches keep running at the provider.
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "run", run, help="ask models; also resumes", description=DESCRIPTION)
    options.add_purchase(parser)
    options.add_models(parser)


def run(args: argparse.Namespace) -> int:
    from batchbench.app.requests import Options, Purchase
    from batchbench.app.run import run_probes

    request = options.selection(args), options.struct(Options, args), options.struct(Purchase, args)
    finished = run_probes(*request, options.store(args), Terminal(quiet=args.quiet))
    if args.json:
        show_json([result for result, _ in finished])
    elif not args.quiet:
        for result, _ in finished:
            show(_summary(result))
    return complain([error for _, error in finished])


def _summary(result: "RunResult") -> str:
    from batchbench.core.money import MILLION, dollars

    stamps = ["EMULATED"] * result.emulated + ["SAMPLE DATA"] * result.sample_data
    return (
        f"{result.probe} {result.model}: {result.answered:,} of {result.asked:,} answered, {result.refused:,} refused, "
        f"{result.failed:,} failed, {result.missing:,} missing, "
        f"{dollars(round(result.spent_usd * MILLION))} spent ({result.seconds:.1f} s) in {result.run}"
        f"  {' '.join(stamps)}"
    ).rstrip()
