"""Errors that steps of a job raise, with the names of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pyarrow as pa

from weir.author.operator import Json
from weir.errors import FailureKind, UserFunctionError, WeirError, kind_in_step


class StepError(Exception):
    """A step of the job raised; the message names the step and what was raised."""

    def __init__(
        self,
        step: str,
        error: BaseException,
        kind: FailureKind = FailureKind.OTHER,
        batch: pa.RecordBatch | None = None,
    ) -> None:
        """``kind``: what it says about the next attempt; ``batch``: the rows that the step was given."""
        # What a function of the author raised names the step already.
        is_told = isinstance(error, UserFunctionError)
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        super().__init__(str(error) if is_told else f"step {step!r} failed: {reason}")
        self.step = step
        self.kind = kind
        self.batch = batch


def name_step(
    error: BaseException, step: str, *, is_sink: bool = False, batch: pa.RecordBatch | None = None
) -> None:
    """Say where an error was raised; called in an ``except`` clause that then raises it again.

    Our own errors say already what to do, and only take the name of the step.

    Raises:
        StepError: in its place, for what the job's author wrote.
    """
    if isinstance(error, StepError):
        return
    if isinstance(error, WeirError) and not isinstance(error, UserFunctionError):
        error.step = error.step or step
        return
    if isinstance(error, UserFunctionError) and error.rows is not None:
        batch = error.rows
    kind = kind_in_step(error, is_sink=is_sink, takes_rows=batch is not None)
    raise StepError(step, error, kind, batch) from error


@contextmanager
def naming_step(step: str, *, is_sink: bool = False) -> Iterator[None]:
    """Run what is not given rows under the name of a step; see :func:`name_step`."""
    try:
        yield
    # A function may call sys.exit(): that must not end the thread without a word.
    except BaseException as error:
        name_step(error, step, is_sink=is_sink)
        raise


def as_kept(value: Json, step: str) -> Json:
    """What a step, a source included, wants to find again in a checkpoint, as it is now: a copy.

    It is written later, by another thread, and the step may go on changing what it told.

    Raises:
        StepError: it is not JSON; the next attempt fails in the same way.
    """
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError as error:
        told = UserFunctionError(
            f"step {step!r}: what it keeps in a checkpoint (a sink: what prepare returned, a source: its positions) is "
            f"not JSON: {error}; return numbers, strings, lists and dicts with string keys"
        )
        raise StepError(step, told, FailureKind.PERMANENT) from error
