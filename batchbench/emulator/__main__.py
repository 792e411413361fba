"""`python -m batchbench.emulator`: the emulator without the rest of the command line."""

import argparse
import sys

from batchbench.emulator import options
from batchbench.errors import BatchbenchError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m batchbench.emulator")
    options.add_arguments(parser)
    try:
        return options.run(parser.parse_args())
    except BatchbenchError as error:
        print(f"emulator: {error}", file=sys.stderr)  # noqa: T201 - the last word of a program
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
