"""Open files and connections that a process may have."""

from __future__ import annotations

import contextlib
import resource

#: More are not needed, and some libraries walk through all numbers.
_WANTED = 65_536


def raise_limit() -> None:
    """Raise the limit of this process to what the system lets it have, at most 65,536; called when a process starts.

    Many systems begin with 1,024, which a stage of some hundred channels beside RocksDB can use up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
