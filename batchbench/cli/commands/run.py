"""`batchbench run PROBE... --model M...`"""

import argparse

from batchbench.cli import options, output

DESCRIPTION = """\
Ask models what a probe asks, through their batch APIs. The same command again resumes: it finds out what became of
every batch, keeps what was answered, and asks only what is missing.

  batchbench run hiring_an --model sim:random                        the emulator, no key
  batchbench run isear gest --model openai:gpt-4.1-mini --budget 5   at most five dollars
  batchbench run hiring_an --model anthropic:claude-haiku-4-5 --sample-k 20000 --repetitions 2

Models: openai:MODEL, anthropic:MODEL, chat:MODEL@http://HOST/v1 (any OpenAI-compatible server), mlm:NAME_OR_FOLDER (a
masked language model on this machine, with the extra `mlm`), sim:PERSONA or sim:anthropic/PERSONA (the emulator;
`batchbench emulate --help` names the personas). Keys come from the environment:
OPENAI_API_KEY, ANTHROPIC_API_KEY, CHAT_API_KEY. Ctrl-C stops; batches that were paid for keep running.
"""


CANCEL = """\
Ask the provider to stop every batch of these runs that is still running. What has been answered is kept and paid for;
`batchbench run` collects it.
"""
ESTIMATE = """\
What a run would ask and cost: requests, tokens, the batch price, the price of the same calls made one by one, and the
worst case that --budget is held against. Nothing is asked.
"""


def add(commands: output.Subparsers) -> None:
    """Declare the commands."""
    estimate = output.command(commands, "estimate", run_estimate, help="what a run would cost", description=ESTIMATE)
    options.add(estimate)
    cancel = output.command(commands, "cancel", run_cancel, help="stop the batches of a run", description=CANCEL)
    options.add(cancel)
    parser = output.command(commands, "run", run, help="ask models; also resumes", description=DESCRIPTION)
    options.add_buying(parser)
    options.add(parser)


def run(args: argparse.Namespace) -> int:
    """Run each probe with each model."""
    from batchbench.app import run as running

    return running.run(args)


def run_estimate(args: argparse.Namespace) -> int:
    """Say what would be asked, and what it would cost."""
    from batchbench.app import estimate as estimating

    return estimating.estimate(args)


def run_cancel(args: argparse.Namespace) -> int:
    """Stop batches."""
    from batchbench.app import run as running

    return running.cancel(args)
