"""What a task manager knows of the job while the control plane answers, and while it does not."""

import asyncio
import threading

from task_manager.queries.directory import FetchedDirectory
from weir.errors import ConnectionLostError
from weir.rpc.wire import JobIdentity
from weir.testing import ManualClock


def test_a_control_plane_that_is_away_is_told_of_since_it_answered_last():
    clock, views = ManualClock(), [{"generation": 3, "state": "RUNNING"}]

    def fetch():
        if not views:
            raise ConnectionLostError("cut off")
        return views[0]

    async def refreshed(after_ms):
        clock.advance_ms(after_ms)
        await directory.refresh(is_wrong=True)
        return directory.away_s, directory.is_fresh

    identity = JobIdentity("job", "fingerprint", 3)
    directory = FetchedDirectory(lambda: identity, fetch, clock)
    assert asyncio.run(refreshed(1_000)) == (0.0, True)
    known = views.pop()
    # It serves on, by the way on which answers say so.
    assert [asyncio.run(refreshed(3_000)) for _ in range(2)] == [(3.0, False), (6.0, False)]
    assert directory.generation == 3
    directory.check()
    views.append(known)
    assert asyncio.run(refreshed(3_000)) == (0.0, True)


def test_what_was_fetched_before_this_process_slept_is_fetched_again():
    """The control plane's answer lies in the socket while the process sleeps for longer than its lease."""
    clock, asked, goes_on = ManualClock(), threading.Event(), threading.Event()
    generations = iter((3, 4, 5))

    def fetch():
        generation = next(generations)
        asked.set()
        assert goes_on.wait(10)
        return {"generation": generation, "state": "RUNNING"}

    async def known():
        before = asyncio.ensure_future(directory.refresh(is_wrong=True))
        await asyncio.to_thread(asked.wait, 10)
        clock.advance_ms(5_000)
        after = asyncio.ensure_future(directory.refresh(is_wrong=False))
        # It waits for the fetch that was begun.
        await asyncio.sleep(0)
        goes_on.set()
        await before
        assert (directory.generation, directory.is_fresh) == (3, False)
        await after
        return directory.generation, directory.is_fresh

    identity = JobIdentity("job", "fingerprint", 3)
    directory = FetchedDirectory(lambda: identity, fetch, clock)
    assert asyncio.run(known()) == (4, False)
