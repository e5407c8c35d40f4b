"""What the caller of a job in one process sees of an error in one of its steps."""

from __future__ import annotations

from weir.errors import UserFunctionError
from weir.operators.step_errors import StepError
from weir.operators.user_errors import row_text


def told(error: BaseException) -> BaseException:
    """The error to raise instead, with its cause set: what the step's code raised, with its traceback.

    Without the frames of the engine between the caller and the step, and with the row, where it is known. An error that
    is not from a step's code stays as it is: where it was raised matters.
    """
    if not isinstance(error, StepError):
        return error
    raised = error.__cause__
    user = raised.__cause__ if isinstance(raised, UserFunctionError) else raised
    if isinstance(user, KeyboardInterrupt):
        return user
    shown = UserFunctionError(str(error))
    shown.step = error.step
    shown.__cause__ = user
    row = None if raised is None else row_text(raised, error.batch)
    if row is not None:
        shown.add_note(f"row: {row}")
    elif error.batch is not None:
        shown.add_note(f"in a batch of {error.batch.num_rows:,} rows")
    return shown
