"""Logs what a job author's code raises: the first error of each kind whole, further ones as numbers.

A kind is a step, the type of the error and the line that raised it. Errors of Weir itself are one line elsewhere.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from weir.errors import UserFunctionError
from weir.rows.python_values import row_json
from weir.rows.records import user_columns

log = logging.getLogger(__name__)

#: Packages whose errors are told in one line: Weir, and what it calls itself.
_NOT_USERS = frozenset(
    {"weir", "task_manager", "numba", "numpy", "orjson", "polars", "pyarrow", "rocksdict", "grpc"}
    | sys.stdlib_module_names
) - {"__main__"}
#: Kinds that are told apart; what comes after them is not logged.
KINDS_MAX = 100
#: Of a row in a log.
ROW_CHARACTERS_MAX = 2_000


@dataclass
class _Told:
    count: int = 0
    #: With a row; a function of batches is told of again when the row is known.
    with_row: bool = False


class UserErrors:
    """Errors in users' code on a task manager, remembered over a job's restarts. Any thread may call :meth:`tell`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._job_id = ""
        self._told: dict[tuple[str, str, str], _Told] = {}

    def begin(self, job_id: str) -> None:
        """A job is deployed; what was told of another one is forgotten."""
        with self._lock:
            if job_id != self._job_id:
                self._job_id = job_id
                self._told.clear()

    def tell(self, step: str, error: BaseException, batch: pa.RecordBatch | None = None) -> None:
        """Log an error of the author's code if it is the first of its kind, the tenth, the hundredth and so on.

        Args:
            step: its name.
            error: what was raised in it.
            batch: the rows that it was given, if it was given any.
        """
        if not is_users(error):
            return
        raised = _raised(error)
        place = _place(raised)
        has_row = _row_number(error, batch) is not None
        with self._lock:
            kind = (step, type(raised).__name__, place)
            if kind not in self._told and len(self._told) >= KINDS_MAX:
                return
            told = self._told.setdefault(kind, _Told())
            told.count += 1
            is_whole = told.count == 1 or (has_row and not told.with_row)
            told.with_row = told.with_row or has_row
            count = told.count
        if is_whole:
            row = row_text(error, batch)
            given = "" if batch is None else f" in a batch of {batch.num_rows:,} rows"
            what = f" on the row {row}" if row is not None else given
            trace = _users_trace(raised)
            log.error("step %r failed%s:%s%s", step, what, "\n" if trace else " ", trace or error)
        elif count == 10 ** (len(str(count)) - 1):
            log.error("step %r: %s at %s for the %dth time", step, type(raised).__name__, place, count)


def is_users(error: BaseException) -> bool:
    """Return whether the code of the job's author raised it, called what did, or returned something wrong."""
    if isinstance(error, UserFunctionError):
        return True
    return _users_part(error) is not None


def _users_part(error: BaseException) -> TracebackType | None:
    """The traceback from the first line of the author's code on; None: there is none."""
    part = error.__traceback__
    while part is not None:
        name = part.tb_frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _NOT_USERS:
            return part
        part = part.tb_next
    return None


def _raised(error: BaseException) -> BaseException:
    """What the author's code raised: our error about it has it as its cause."""
    while isinstance(error, UserFunctionError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _place(error: BaseException) -> str:
    # By hand: the module traceback reads the source of every frame, which takes 0.1 ms.
    part = error.__traceback__
    if part is None:
        return "?"
    while part.tb_next is not None:
        part = part.tb_next
    return f"{part.tb_frame.f_code.co_filename}:{part.tb_lineno}"


def _row_number(error: BaseException, batch: pa.RecordBatch | None) -> int | None:
    """Which row of the batch it is about; None: that is not known."""
    if batch is None:
        return None
    if batch.num_rows == 1:
        return 0
    return error.row_index if isinstance(error, UserFunctionError) else None


def row_text(error: BaseException, batch: pa.RecordBatch | None) -> str | None:
    """The row that an error is about, as JSON; None: that is not known.

    Args:
        error: what a step raised.
        batch: the rows that it was given.
    """
    number = _row_number(error, batch)
    if batch is None or number is None:
        return None
    text = row_json(batch.slice(number, 1).select(user_columns(batch.schema))).decode(
        errors="backslashreplace"
    )
    return (
        text
        if len(text) <= ROW_CHARACTERS_MAX
        else f"{text[:ROW_CHARACTERS_MAX]}... ({len(text):,} characters)"
    )


def _users_trace(raised: BaseException) -> str:
    """The author's traceback; empty where their code returned something wrong and raised nothing."""
    part = None if isinstance(raised, UserFunctionError) else _users_part(raised)
    return "" if part is None else "".join(traceback.format_exception(type(raised), raised, part)).rstrip()
