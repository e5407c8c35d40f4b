"""Where in a job's own code an error comes from: the file and line for people, and the traceback without our frames."""

from __future__ import annotations

import builtins
import inspect
import sysconfig
import traceback
from pathlib import Path

from weir.errors import JobCodeError
from weir.spelling import did_you_mean_only

_OURS = str(Path(__file__).parents[1])
#: The standard library and installed packages: an error there is asked for by a line of the job.
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def job_code_error(message: str, error: BaseException) -> JobCodeError:
    """The error of a job's own code: ``message`` with file and line, and the traceback of that code, whole."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_loader(frame.filename)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    if error.__cause__ is not None or error.__context__ is not None:
        # An error that led to another one: only the whole has both.
        lines = traceback.format_exception(error)
    else:
        lines += traceback.format_exception_only(error)
    return JobCodeError(f"{message}{place_in_job(error)}", "".join(lines).rstrip())


def place_in_job(error: BaseException) -> str:
    """`` (FILE, line N)`` of the job's code that raised or asked for what raised; empty if none is known."""
    if isinstance(error, SyntaxError) and error.filename:
        # Its own text ends with the line, but has only the file's name.
        return _place(error.filename, error.lineno)
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not _is_loader(frame.filename) and not _is_ours(frame.filename)]
    own = [frame for frame in outside if not frame.filename.startswith(_INSTALLED)]
    found = own or outside
    return _place(found[-1].filename, found[-1].lineno) if found else ""


def calling_line() -> str:
    """`` (FILE, line N)`` of the job's code that is calling Weir now; empty if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        filename = frame.f_code.co_filename
        if not (_is_ours(filename) or _is_loader(filename) or filename.startswith(_INSTALLED)):
            return _place(filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def suggestion(error: BaseException) -> str:
    """``"; did you mean 'x'?"`` of a name or an attribute that is nearly right; empty if none is near."""
    if not isinstance(error, AttributeError | NameError) or not error.name or "did you mean" in str(error):
        return ""
    if isinstance(error, AttributeError):
        known = {name for name in dir(error.obj) if not name.startswith("_")}
    else:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        known = {*frame.f_locals, *frame.f_globals, *dir(builtins)}
    return did_you_mean_only(error.name, known)


def _place(filename: str, line: int | None) -> str:
    return f" ({filename}, line {line})"


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OURS + "/")


def _is_loader(filename: str) -> bool:
    return (
        filename.startswith("<frozen")
        or "/importlib/" in filename
        or filename == f"{_OURS}/dataflow/loading.py"
    )
