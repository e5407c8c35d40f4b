"""``weir sql``: statements from the command line, a file or a prompt, answered as tables."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
from rich.console import Console

from weir.console.plan_drawing import draw
from weir.errors import GraphError, WeirError
from weir.plan.stages import physical_graph
from weir.process.printable import one_entry, printable
from weir.redaction import redacted_text
from weir.sql.session import Answer, Session

_WIDTH, _TEXT_WIDTH = 10_000, 200
_HISTORY_LINES = 1_000
_HELP = """Statements end with a semicolon.
  SELECT ... FROM 'orders.parquet'              a file: .parquet, .csv, .jsonl, .arrow; a folder by CREATE SOURCE
  SELECT ... FROM 'state/STEP/STATE'            a state of the job at {address}
  CREATE SOURCE / VIEW / FUNCTION ...           as in files, for this session: topics, event times
  EXPLAIN SELECT ...   SHOW TABLES   \\q"""

#: How rows are written where somebody asks for another form than a table.
FORMS: dict[str, Callable[[pl.DataFrame], str]] = {
    "csv": lambda frame: frame.write_csv(),
    "json": lambda frame: frame.write_ndjson(),
}


def run_text(session: Session, text: str, file: str, form: str, rows: int) -> int:
    """Answer all statements of a text; returns the exit code.

    Args:
        session: what was declared.
        text: the statements.
        file: what messages call it.
        form: "table", "csv" or "json".
        rows: of a table, at most.

    Raises:
        WeirError: a statement is wrong, or an input cannot be read.
    """
    answered = False
    for answer in session.run(text, file):
        answered = True
        _show(answer, form, rows)
    if not answered:
        raise GraphError("there is no statement; write SELECT ...")
    return 0


def prompt(session: Session, form: str, rows: int) -> int:
    """Ask for statements until the end of the input; returns the exit code."""
    history = _history()
    print(f"weir sql: states are those of {session.address}; \\? for help")
    waiting = ""
    while True:
        try:
            line = input("weir> " if not waiting else "  ... ")
        except EOFError:
            print()
            break
        except KeyboardInterrupt:
            # As shells have it: what was typed is gone.
            print("^C")
            waiting = ""
            continue
        if not waiting and line.strip() in ("\\q", "exit", "quit"):
            break
        if not waiting and line.strip() in ("\\?", "help"):
            print(_HELP.format(address=session.address))
            continue
        waiting += line + "\n"
        if waiting.rstrip().endswith(";") or not waiting.strip():
            text, waiting = waiting, ""
            _answered(session, text, form, rows)
    history()
    return 0


def _answered(session: Session, text: str, form: str, rows: int) -> None:
    try:
        for answer in session.run(text):
            _show(answer, form, rows)
    except WeirError as error:
        print(f"error: {one_entry(redacted_text(str(error)))}", file=sys.stderr)
    except KeyboardInterrupt:
        print("cancelled", file=sys.stderr)


def _show(answer: Answer, form: str, rows: int) -> None:
    for note in answer.notes:
        print(f"note: {one_entry(note)}", file=sys.stderr)
    if answer.graph is not None:
        # A tree is cut at the console's width; the terminal wraps longer lines itself.
        Console(highlight=False, width=_WIDTH).print(draw(physical_graph(answer.graph)), soft_wrap=True)
    elif answer.frame is None:
        print(answer.message)
    elif form in FORMS:
        print(FORMS[form](answer.frame), end="")
    else:
        frame = answer.frame
        with pl.Config(
            tbl_rows=-1,
            tbl_cols=-1,
            tbl_width_chars=_WIDTH,
            fmt_str_lengths=_TEXT_WIDTH,
            tbl_hide_dataframe_shape=True,
        ):
            # Texts of rows may hold what controls a terminal.
            print(printable(str(frame.head(rows))))
        shown = min(rows, frame.height)
        print(
            f"{shown:,} of {frame.height:,} rows; --rows shows more"
            if shown < frame.height
            else _count(shown)
        )


def _count(rows: int) -> str:
    return f"{rows:,} row{'' if rows == 1 else 's'}"


def _history() -> Callable[[], None]:
    """Read what was typed before; returns what keeps it. Nothing where there is no line editor."""
    try:
        import readline
    except ImportError:
        return lambda: None
    path = Path.home() / ".weir_sql_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY_LINES)

    def keep() -> None:
        try:
            readline.write_history_file(path)
        except OSError:
            print(f"weir sql: {path} cannot be written; what was typed is not kept", file=sys.stderr)

    return keep
