"""The commands that look at states and other rows: ``weir sql`` and ``weir state``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from weir.console.options import ConfigOption, ParamOption, SetOption, TableForm
from weir.process.entry_point import run

SQL_EPILOG = """
Examples:

\b
weir sql
weir sql -c "SELECT who, COUNT(*) AS n FROM 'orders.jsonl' GROUP BY who ORDER BY n DESC LIMIT 5"
weir sql -c "SELECT * FROM 'state/totals/n' WHERE key = 'ann'" --job localhost:9008 --format json
weir sql declarations.sql -c "SELECT * FROM bids LIMIT 10" --for 2
"""

STATE_EPILOG = """
Examples:

\b
weir state savepoints/monday
weir state savepoints/monday --job counts.py seen
weir state savepoints/monday --job my_jobs.orders --param input=orders.jsonl totals/n --limit 100
weir state savepoints/tuesday --job counts.py seen --before savepoints/monday
weir state savepoints/monday --job counts.py seen --out seen.parquet
"""


def sql_command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Statements that are run first (CREATE SOURCE ...)."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", metavar="TEXT", help="Run these statements, without a prompt."),
    ] = None,
    job: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="HTTP address of a running job whose states are tables.")
    ] = "localhost:9008",
    for_s: Annotated[
        float | None,
        typer.Option(
            "--for", metavar="SECONDS", min=0.1, help="Read sources for so long (default: to their end; 5 s)."
        ),
    ] = None,
    form: Annotated[
        TableForm, typer.Option("--format", help="How rows are written.", show_choices=True)
    ] = TableForm.TABLE,
    rows: Annotated[int, typer.Option(min=1, help="Show so many rows of a table.")] = 200,
) -> None:
    """Answer SQL queries over files, topics and the states of a running job: at a prompt, or once with -c.

    Queries run in this process and change nothing. Without a terminal the statements are read from standard input.
    """

    def answer() -> int:
        from weir.console.sql_prompt import prompt, run_text
        from weir.sql.job import text_of
        from weir.sql.session import Session

        # Functions of Python are beside the user, as those of jobs.
        sys.path.insert(0, os.getcwd())
        session = Session(job, for_s)
        if file is not None:
            run_text(session, text_of(str(file)), file.name, form.value, rows)
        if command is not None:
            return run_text(session, command, "SQL", form.value, rows)
        if not sys.stdin.isatty():
            return 0 if file is not None else run_text(session, sys.stdin.read(), "SQL", form.value, rows)
        return prompt(session, form.value, rows)

    run("weir sql", answer)


def state_command(
    savepoint: Annotated[
        str, typer.Argument(metavar="SAVEPOINT", help="A savepoint, the folder of a job, or one manifest.")
    ],
    state: Annotated[
        str | None, typer.Argument(metavar="[STEP[/STATE]]", help="Show the keys and values of this state.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="The job, which says what the bytes of its states mean.")
    ] = None,
    param: ParamOption = None,
    config: ConfigOption = None,
    set_flags: SetOption = None,
    before: Annotated[
        str | None, typer.Option(metavar="SAVEPOINT", help="Show only what is not as in this earlier one.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many keys.")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="Write all of them to this file instead: .parquet, .csv or .jsonl.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in the state of a job that is stopped: its steps and states, or the values of one state."""

    def show() -> int:
        from weir.console.given_job import GivenJob
        from weir.console.state_view import print_contents, print_values

        if state is None:
            return print_contents(savepoint, as_json=as_json)
        if job is None:
            raise typer.BadParameter(f"what {state} holds is known with its job only; add --job JOB")
        read = GivenJob(job, param or [], config, set_flags or [])
        return print_values(savepoint, state, read, before=before, limit=limit, out=out, as_json=as_json)

    run("weir state", show)
