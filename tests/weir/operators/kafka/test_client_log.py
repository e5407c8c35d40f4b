"""Of a broker that is away the client tells several times a second, and the log does so every ten seconds."""

import logging

from weir.operators.kafka.client_log import OncePerWhile, client_log
from weir.testing import ManualClock

AWAY = "%s [%s] Connect to ipv4#127.0.0.1:1 failed (after %dms)"


def told(once, *lines):
    """What leaves of lines, each with its arguments."""
    records = [
        logging.LogRecord("n", logging.ERROR, "p", 1, text, args, None) for text, *args in map(tuple, lines)
    ]
    for record in records:
        record.args = tuple(record.args)
    return [record.getMessage() for record in records if once.filter(record)]


def test_lines_that_differ_in_numbers_are_told_once_in_a_while_with_their_number():
    clock = ManualClock()
    once = OncePerWhile(clock)
    lines = [(AWAY, "FAIL", f"rdkafka#producer-{number}", number) for number in range(5)]
    assert told(once, *lines) == ["FAIL [rdkafka#producer-0] Connect to ipv4#127.0.0.1:1 failed (after 0ms)"]
    assert told(once, ("SASL failed",), *lines) == ["SASL failed"]
    clock.advance_ms(10_000)
    (line,) = told(once, *lines)
    assert line.endswith("failed (after 0ms) (and 9 times before)")


def test_kinds_are_bounded_and_clients_use_it():
    once = OncePerWhile(ManualClock())
    assert len(told(once, *((f"kind {'x' * number}",) for number in range(500)))) == 500
    assert len(once._kinds) <= 200
    assert any(isinstance(each, OncePerWhile) for each in client_log.filters)
