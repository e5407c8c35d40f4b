"""``python -m weir``, and the console command ``weir``."""

import sys

from weir.console import head_start
from weir.process import bytecode


def main() -> None:
    """Run one command; never returns."""
    try:
        bytecode.keep()
        head_start.begin(sys.argv[1:])
        from weir.console.command_line import app
    except KeyboardInterrupt:
        # As shells expect it of Ctrl-C; what was started ends with this process.
        sys.exit(130)

    app(prog_name="weir")


if __name__ == "__main__":
    main()
