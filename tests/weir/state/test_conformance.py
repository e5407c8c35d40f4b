"""What every state backend must do; runs over all of them."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import cases
from tests.weir.state.database_backend import AppliedAtOnce
from weir.errors import StateError
from weir.state.api import StateBackend

ALPHABET = [bytes([byte]) for byte in (0x00, 0x01, 0x61, 0xFE, 0xFF)]
ENTRIES = {bytes([first, second]): b"%d.%d" % (first, second) for first in range(8) for second in range(8)}


def fill(backend: StateBackend) -> None:
    backend.write(puts=list(ENTRIES.items()))


def expected(
    start: bytes | None, stop: bytes | None, entries: dict[bytes, bytes]
) -> list[tuple[bytes, bytes]]:
    return [
        (key, entries[key])
        for key in sorted(entries)
        if (start is None or key >= start) and (stop is None or key < stop)
    ]


def test_get_gives_values_in_the_order_asked_and_none_for_absent_keys(backend: StateBackend) -> None:
    backend.put_many([b"a", b"b", b""], [b"1", b"", b"empty key"])
    assert backend.get_many([b"b", b"absent", b"a", b"a", b""]) == [b"", None, b"1", b"1", b"empty key"]
    assert backend.get_many([]) == []


def test_the_last_put_of_a_key_wins_and_deletes_come_after_puts(backend: StateBackend) -> None:
    backend.put_many([b"k", b"k"], [b"1", b"2"])
    backend.write(puts=[(b"gone", b"1")], deletes=[b"gone", b"never there"])
    assert backend.get_many([b"k", b"gone"]) == [b"2", None]


def test_values_of_any_size_come_back(backend: StateBackend) -> None:
    values = [b"", b"\0", bytes(range(256)) * 100, b"x" * 2_000_000]
    keys = [b"key%d" % index for index in range(len(values))]
    backend.put_many(keys, values)
    assert backend.get_many(keys) == values


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (None, None),
        (b"\x02", None),
        (None, b"\x03\x03"),
        (b"\x02", b"\x02\x05"),
        (b"\x05", b"\x02"),
        (b"\x02", b"\x02"),
    ],
)
def test_ranges_are_half_open_and_ordered_both_ways(
    backend: StateBackend, start: bytes | None, stop: bytes | None
) -> None:
    fill(backend)
    assert list(backend.scan(start, stop)) == expected(start, stop, ENTRIES)
    assert list(backend.scan(start, stop, reverse=True)) == expected(start, stop, ENTRIES)[::-1]


def test_long_ranges_are_read_in_chunks_without_gaps(backend: StateBackend) -> None:
    entries = {b"%05d" % index: b"v" for index in range(2_500)}
    backend.write(puts=list(entries.items()))
    assert list(backend.scan()) == sorted(entries.items())
    got = list(backend.scan(b"00001", b"02400", reverse=True))
    assert got == expected(b"00001", b"02400", entries)[::-1]


def test_a_prefix_scan_stops_behind_the_prefix_even_if_it_is_all_ff(backend: StateBackend) -> None:
    keys = [b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff\xff\xff\x01", b"a", b"a\xff", b"b"]
    backend.put_many(keys, keys)
    for prefix in (b"", b"\xff", b"\xff\xff", b"a", b"a\xff", b"zz"):
        want = sorted((key, key) for key in keys if key.startswith(prefix))
        assert list(backend.scan_prefix(prefix)) == want
        assert list(backend.scan_prefix(prefix, reverse=True)) == want[::-1]
        assert backend.may_hold(prefix) or not want


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (None, None),
        (b"\x02", None),
        (None, b"\x03\x03"),
        (b"\x02", b"\x02\x05"),
        (b"\x05", b"\x02"),
        (b"\x90", None),
    ],
)
def test_delete_range_removes_the_range_and_nothing_else(
    backend: StateBackend, start: bytes | None, stop: bytes | None
) -> None:
    fill(backend)
    backend.delete_range(start, stop)
    gone = dict(expected(start, stop, ENTRIES))
    left = {key: value for key, value in ENTRIES.items() if key not in gone}
    assert list(backend.scan()) == sorted(left.items())
    assert backend.get_many(list(ENTRIES)) == [left.get(key) for key in ENTRIES]
    backend.put_many(list(ENTRIES), list(ENTRIES.values()))
    assert list(backend.scan()) == sorted(ENTRIES.items())


def test_delete_range_of_an_empty_store_is_no_error(backend: StateBackend) -> None:
    backend.delete_range(None, None)
    assert list(backend.scan()) == []


def test_a_begun_scan_does_not_see_later_writes(backend: StateBackend) -> None:
    if isinstance(backend, AppliedAtOnce):
        pytest.skip("a scan ends before the barrier of the checkpoint that covers later writes")
    fill(backend)
    scan = backend.scan()
    unread = backend.scan(b"\x01", reverse=True)
    first = next(scan)
    backend.write(puts=[(key, b"new") for key in ENTRIES], deletes=[b"\x00\x01"])
    backend.write(puts=[(b"\x03\x03\x03", b"inserted")])
    backend.delete_range(b"\x05", None)
    backend.flush()
    assert [first, *scan] == sorted(ENTRIES.items())
    assert list(unread) == expected(b"\x01", None, ENTRIES)[::-1]
    assert backend.get_many([b"\x00\x01", b"\x00\x02", b"\x05\x05"]) == [None, b"new", None]


def test_a_scan_is_consistent_while_another_thread_writes(backend: StateBackend) -> None:
    keys = [b"%03d" % index for index in range(200)]
    if isinstance(backend, AppliedAtOnce):
        scan_while_changes_are_applied(backend, keys)
        return
    backend.put_many(keys, [b"0"] * len(keys))
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        round_number = 0
        try:
            while not stop.is_set():
                round_number += 1
                # One atomic write: every consistent view holds a single round.
                backend.put_many(keys, [b"%d" % round_number] * len(keys))
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            entries = list(backend.scan(reverse=True))
            assert len({value for _, value in entries}) == 1
            assert [key for key, _ in entries] == keys[::-1]
    finally:
        stop.set()
        writer.join()
    assert failures == []


def scan_while_changes_are_applied(backend: AppliedAtOnce, keys: list[bytes]) -> None:
    """Of a database's rows there is no view of one moment; but nothing is applied that was not written before."""
    for number in range(20):
        backend.change([(key, b"%d" % number) for key in keys])
        applying = threading.Thread(target=backend.apply)
        applying.start()
        try:
            assert list(backend.scan(reverse=True)) == [(key, b"%d" % number) for key in keys[::-1]]
        finally:
            applying.join()


def test_a_closed_store_refuses_every_call(backend: StateBackend) -> None:
    fill(backend)
    backend.close()
    backend.close()
    calls = [
        lambda: backend.get_many([b"a"]),
        lambda: backend.put_many([b"a"], [b"b"]),
        lambda: backend.delete_range(None, None),
        lambda: backend.write(deletes=[b"a"]),
        lambda: list(backend.scan()),
        backend.flush,
        backend.stats,
    ]
    for call in calls:
        with pytest.raises(StateError, match="closed"):
            call()


def test_stats_count_what_was_done(backend: StateBackend) -> None:
    backend.put_many([b"a", b"b", b"c"], [b"1", b"2", b"3"])
    backend.get_many([b"a", b"z"])
    backend.write(deletes=[b"a"])
    stats = backend.stats()
    assert (stats.gets, stats.puts, stats.deletes) == (2, 3, 1)
    assert isinstance(backend, AppliedAtOnce) or stats.memory_bytes > 0


key_strategy = st.lists(st.sampled_from(ALPHABET), max_size=4).map(b"".join)
bound = st.none() | key_strategy
operation = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(key_strategy, st.binary(max_size=3)), max_size=6)),
    st.tuples(st.just("delete"), st.lists(key_strategy, max_size=4)),
    st.tuples(st.just("delete_range"), bound, bound),
    st.tuples(st.just("scan"), bound, bound, st.booleans()),
    st.tuples(st.just("get"), st.lists(key_strategy, max_size=6)),
    st.tuples(st.just("flush")),
)


@settings(max_examples=cases(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(operation, max_size=40))
def test_random_operations_agree_with_a_dictionary(backend: StateBackend, operations: list[tuple]) -> None:
    backend.delete_range(None, None)
    model: dict[bytes, bytes] = {}
    for name, *arguments in operations:
        if name == "put":
            backend.write(puts=arguments[0])
            model.update(arguments[0])
        elif name == "delete":
            backend.write(deletes=arguments[0])
            for key in arguments[0]:
                model.pop(key, None)
        elif name == "delete_range":
            backend.delete_range(*arguments)
            for key, _ in expected(*arguments, model):
                del model[key]
        elif name == "scan":
            start, stop, reverse = arguments
            want = expected(start, stop, model)
            assert list(backend.scan(start, stop, reverse=reverse)) == (want[::-1] if reverse else want)
        elif name == "get":
            assert backend.get_many(arguments[0]) == [model.get(key) for key in arguments[0]]
        else:
            backend.flush()
    assert list(backend.scan()) == sorted(model.items())
    assert backend.get_many(ALPHABET) == [model.get(key) for key in ALPHABET]
