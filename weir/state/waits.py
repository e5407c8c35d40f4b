"""How long a thread has waited for a store that is elsewhere: time that rows which are read for together share."""

from __future__ import annotations

import threading


class _Waits(threading.local):
    #: Since the thread began. Stores elsewhere add to it; read without a call, which a small batch would pay for.
    seconds = 0.0


of_thread = _Waits()
