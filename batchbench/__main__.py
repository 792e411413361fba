"""`python -m batchbench` is the `batchbench` command."""

import sys

from batchbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
