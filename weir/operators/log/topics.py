"""How many partitions a topic has: sources and sinks ask once, when they begin."""

from __future__ import annotations

from weir import threads
from weir.clock import Clock
from weir.errors import ConnectionLostError, WeirError
from weir.log.cluster import Cluster
from weir.operators.log.errors import unreachable

#: How long brokers are waited for when the job begins.
ANSWER_TIMEOUT_S = 30.0
_RETRY_S = 0.1


def partition_count(who: str, bootstrap: str, topic: str, clock: Clock) -> int:
    """How many partitions a topic has.

    Args:
        who: the step, for messages.
        bootstrap: addresses of brokers.
        topic: its name.
        clock: for time-outs.

    Raises:
        InputError: there is no such topic, or no broker answers, which is waited for.
    """
    until_s = clock.monotonic_s() + ANSWER_TIMEOUT_S
    try:
        cluster = Cluster(bootstrap)
        try:
            while True:
                try:
                    return cluster.partition_count(topic)
                except ConnectionLostError:
                    if clock.monotonic_s() > until_s:
                        raise
                    threads.sleep(_RETRY_S)
        finally:
            cluster.close()
    except WeirError as error:
        raise unreachable(who, bootstrap, error) from error
