"""How long a thread waits for a store that is elsewhere, while it works for somebody who has not got all day.

The state of a job waits for its database as long as it takes. Who only asks what the state is does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Called with why the store does not answer ("": it is only slow so far) every now and then; raises to give up.
Patience = Callable[[str], None]

_patience: ContextVar[Patience | None] = ContextVar("patience", default=None)


@contextmanager
def limited(patience: Patience) -> Iterator[None]:
    """Let stores ask ``patience`` whether to wait on, in this thread and as long as the block lasts."""
    token = _patience.set(patience)
    try:
        yield
    finally:
        _patience.reset(token)


def current() -> Patience | None:
    """Return the patience of this thread; None: it waits as long as it takes."""
    return _patience.get()
