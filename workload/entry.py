"""What both command-line scripts share: their consoles, and errors as one line and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from weir.errors import WeirError
from weir.process.entry_point import INTERRUPTED_EXIT_CODE

#: Progress and errors; results go to standard output.
ERROR_CONSOLE = Console(stderr=True, soft_wrap=True)


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """End the process with one line on standard error when the block fails in a way that a user can mend.

    Args:
        name: The script's name, which begins the line.

    Raises:
        typer.Exit: With the error's exit code, or 130 after Ctrl-C.
    """
    try:
        yield
    except WeirError as error:
        ERROR_CONSOLE.print(f"{name}: error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(error.exit_code) from error
    except OSError as error:
        # A full disk, a directory without permission: the system's words, with the path.
        where = f"{error.filename}: " if error.filename else ""
        ERROR_CONSOLE.print(
            f"{name}: error: {where}{error.strerror or error}", style="red", markup=False, highlight=False
        )
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        ERROR_CONSOLE.print("interrupted: nothing was written", highlight=False)
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from error
