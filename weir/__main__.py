"""``python -m weir``, and the console command ``weir``."""

import sys

from weir.console import head_start
from weir.process import bytecode


def main() -> None:
    """Run one command; never returns."""
    bytecode.keep()
    head_start.begin(sys.argv[1:])
    from weir.console.command_line import app

    app(prog_name="weir")


if __name__ == "__main__":
    main()
