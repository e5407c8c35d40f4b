"""Task managers that live are waited for, however slow they are; those that are gone are not."""

import pytest

from weir.protocol.job.takeover import PATIENCE_LEASES, PATIENCE_WITH_LIVING_LEASES, Next, decide

LEASE_MS = 1_000
IN_TIME, LATE = PATIENCE_LEASES * LEASE_MS - 1, PATIENCE_LEASES * LEASE_MS
TOO_LATE = PATIENCE_WITH_LIVING_LEASES * LEASE_MS


@pytest.mark.parametrize(
    ("missing", "waited_ms", "is_steady", "living", "choice"),
    [
        ({"a"}, IN_TIME, True, None, Next.WAIT),
        ({"a"}, IN_TIME, False, None, Next.WAIT),
        # The machine is busy: what has not registered in time may live.
        ({"a"}, LATE, True, None, Next.ASK),
        ({"a"}, LATE, True, {"a"}, Next.WAIT),
        ({"a"}, LATE, True, set(), Next.RESTART),
        ({"a", "b"}, LATE, True, {"b"}, Next.RESTART),
        ({"a", "b"}, TOO_LATE - 1, True, {"a", "b"}, Next.WAIT),
        # One that answers and never registers may have another control plane in its settings.
        ({"a"}, TOO_LATE, True, {"a"}, Next.RESTART),
        # Half a rescale cannot go on, whoever is back.
        (set(), LATE, False, None, Next.RESTART),
        # The last one registered while it was asked.
        (set(), LATE, True, set(), Next.WAIT),
    ],
)
def test_decision(missing, waited_ms, is_steady, living, choice):
    assert decide(missing, waited_ms, LEASE_MS, is_steady=is_steady, living=living) is choice
