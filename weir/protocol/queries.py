"""Questions to running state: from parameters to a question, what continues it, and what refuses it. Pure.

Called by the control plane, which parses; task managers read the JSON form. docs/design/0005 has the decisions.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from weir.errors import WeirError
from weir.protocol.job.job_machine import JobState

Consistency = Literal["latest", "checkpoint"]

#: Rows of a page unless told otherwise, and at most; bytes of a page, about.
PAGE_ROWS, PAGE_ROWS_MAX = 1_000, 10_000
PAGE_BYTES_MAX = 4 << 20
#: The same of a page in Arrow.
ARROW_ROWS_MAX = 100_000
ARROW_BYTES_MAX = 16 << 20
#: How long one question may take.
TIMEOUT_S = 5.0
_KEY_CHARACTERS_MAX = 8_192
_CHECKPOINT_MAX = 2**62
_BOUNDS = frozenset({"from", "to", "prefix"})
_PARAMETERS = _BOUNDS | {
    "consistency", "reverse", "limit", "as_of", "time_from", "time_to", "count", "continuation", "min_checkpoint",
}  # fmt: skip


class QueryError(WeirError):
    """A question that is not answered; ``status`` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Question:
    """What is asked of one state. Keys and bounds are text as the caller wrote them."""

    step: str
    state: str
    #: None: all keys.
    key: str | None = None
    consistency: Consistency = "latest"
    #: Both inclusive: of keys; with a key of what is below it.
    first: str | None = None
    last: str | None = None
    prefix: str | None = None
    reverse: bool = False
    limit: int = PAGE_ROWS
    #: Of one key: whoever gave a limit gets so many entries at most; who did not, all of them or a refusal.
    cuts: bool = False
    as_of_ms: int | None = None
    #: Of ranges, whose bounds are keys: of which times what belongs to times is wanted; both inclusive.
    time_from_ms: int | None = None
    time_to_ms: int | None = None
    #: Only how many keys there are.
    counts: bool = False
    #: Only as of this checkpoint or a later one: what was written before it was asked for is in the answer.
    min_checkpoint: int | None = None
    #: Go on after this key (hexadecimal bytes of the key); of a checkpoint in this one.
    after: str = ""
    checkpoint_id: int | None = None
    #: The rows are wanted in Arrow.
    arrow: bool = False
    #: So many task managers are asked for parts of one page, which share its bytes.
    shares: int = 1

    @property
    def is_bounded(self) -> bool:
        """Return whether a range is asked for."""
        return (self.first, self.last, self.prefix) != (None, None, None)

    @property
    def has_times(self) -> bool:
        """Return whether only what belongs to some times is asked for."""
        return (self.time_from_ms, self.time_to_ms) != (None, None)

    def to_json(self) -> dict[str, Any]:
        """Return the question for a task manager."""
        # ``asdict`` copies every value, which takes half as long as all the rest of a question.
        return {
            name: value for name, default in _DEFAULTS.items() if (value := getattr(self, name)) != default
        }


#: Of all fields; what is as here is not sent.
_DEFAULTS = {field.name: field.default for field in fields(Question)}


def question_from_json(value: Any) -> Question:
    """What :meth:`Question.to_json` returned.

    Raises:
        QueryError: it has another form.
    """
    if not isinstance(value, dict) or not {"step", "state"} <= value.keys() <= _DEFAULTS.keys():
        raise QueryError(
            400, "the question has fields that are not known here: run the same Weir version everywhere"
        )
    return Question(**value)


def parse_question(
    step: str, state: str, key: str | None, given: Mapping[str, str], *, arrow: bool = False
) -> Question:
    """A question from the parameters of a request, all of which are text; ``arrow``: rows are wanted so.

    Raises:
        QueryError: they are unknown, malformed, or do not go together; the message names them.
    """
    if given and (unknown := sorted(given.keys() - _PARAMETERS)):
        raise QueryError(400, f"{unknown[0]!r} is no parameter; there are {', '.join(sorted(_PARAMETERS))}")
    if key is not None and len(key) > _KEY_CHARACTERS_MAX:
        raise QueryError(400, f"the key has more than {_KEY_CHARACTERS_MAX:,} characters")
    if key is not None and not given:
        # Most questions: what follows would leave everything else as it is.
        return Question(step, state, key)
    after, checkpoint_id = read_continuation(given["continuation"]) if "continuation" in given else ("", None)
    is_range = key is None
    continues_latest = bool(after) and checkpoint_id is None
    default = "checkpoint" if (is_range and not continues_latest) or checkpoint_id is not None else "latest"
    consistency = given.get("consistency", default)
    if consistency not in ("latest", "checkpoint"):
        raise QueryError(400, f"consistency is {consistency!r}; it must be latest or checkpoint")
    if checkpoint_id is not None and consistency == "latest":
        raise QueryError(400, "the continuation is of a checkpoint; leave consistency out")
    if continues_latest and consistency == "checkpoint":
        raise QueryError(400, "the continuation is of consistency=latest; leave consistency out")
    if "prefix" in given and ("from" in given or "to" in given):
        raise QueryError(400, "prefix and from or to exclude each other")
    min_checkpoint = (
        _number(given, "min_checkpoint", 0, 0, _CHECKPOINT_MAX) if "min_checkpoint" in given else None
    )
    if min_checkpoint is not None and checkpoint_id is not None and checkpoint_id < min_checkpoint:
        raise QueryError(
            400,
            f"the continuation is of checkpoint {checkpoint_id}: leave min_checkpoint out, or begin again",
        )
    counts = _flag(given, "count")
    if counts and not is_range:
        raise QueryError(400, "count is for all keys, or a range of them: leave the key out")
    has_times = "time_from" in given or "time_to" in given
    if "as_of" in given and (has_times or (not is_range and not given.keys().isdisjoint(_BOUNDS))):
        raise QueryError(400, "as_of is one moment: leave the range of times out")
    arrow = arrow and is_range and not counts
    limit = _number(given, "limit", PAGE_ROWS, 1, ARROW_ROWS_MAX if arrow else PAGE_ROWS_MAX)
    if consistency == "latest" and not is_range and limit > PAGE_ROWS:
        raise QueryError(
            400,
            f"limit is {limit}; of latest it is at most {PAGE_ROWS}, for rows wait: ask with consistency=checkpoint",
        )
    return Question(
        step=step,
        state=state,
        key=key,
        consistency=consistency,  # type: ignore[arg-type]
        first=given.get("from"),
        last=given.get("to"),
        prefix=given.get("prefix"),
        reverse=_flag(given, "reverse"),
        limit=limit,
        cuts="limit" in given and not is_range,
        as_of_ms=_time(given, "as_of"),
        time_from_ms=_time(given, "time_from"),
        time_to_ms=_time(given, "time_to"),
        counts=counts,
        min_checkpoint=min_checkpoint,
        after=after,
        checkpoint_id=checkpoint_id,
        arrow=arrow,
    )


def _time(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name, 0, -(2**62), 2**62) if name in given else None


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise QueryError(400, f"{name} is {text!r}; it must be true or false")
    return text in ("true", "1")


def _number(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    if name not in given:
        return default
    try:
        number = int(given[name])
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise QueryError(400, f"{name} is {given[name]!r}; it must be a whole number from {low} to {high}")
    return number


def continuation(checkpoint_id: int | None, after: str) -> str:
    """The token with which a range goes on after a key, in the same checkpoint; None: as the owners have it then."""
    return base64.urlsafe_b64encode(json.dumps([checkpoint_id, after]).encode()).decode()


def read_continuation(token: str) -> tuple[str, int | None]:
    """The key and the checkpoint of a token; None: it is of ``latest``.

    Raises:
        QueryError: it is none.
    """
    try:
        checkpoint_id, after = json.loads(base64.urlsafe_b64decode(token.encode()))
        bytes.fromhex(after)
    except (ValueError, TypeError, binascii.Error) as error:
        raise QueryError(400, "the continuation is not one that an answer had") from error
    is_number = type(checkpoint_id) is int and 0 <= checkpoint_id <= _CHECKPOINT_MAX
    if not (is_number or (checkpoint_id is None and after)):
        raise QueryError(400, "the continuation is not one that an answer had")
    return after, checkpoint_id


#: States of the job in which subtasks answer.
_ANSWERING = (JobState.RUNNING, JobState.FINISHING)
_STARTING = (JobState.WAITING_FOR_TASK_MANAGERS, JobState.DEPLOYING, JobState.RESTARTING)


def check_job(state: JobState) -> None:
    """Refuse questions while the job does not run.

    Raises:
        QueryError: 503 while it starts or restarts, 409 when it is over.
    """
    if state in _ANSWERING:
        return
    if state in _STARTING:
        raise QueryError(503, f"the job is {state.value}: its state is not there yet; try again")
    raise QueryError(409, f"the job is {state.value}: no task manager has its state any more")
