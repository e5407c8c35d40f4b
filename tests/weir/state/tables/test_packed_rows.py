"""The bytes of packed panes, and that what is packed comes out as it was."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import cases
from weir.errors import StateMismatchError
from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cells.accumulators import encode_values
from weir.state.tables.panes import packed_rows, pane_packing
from weir.state.tables.panes.packed_reading import get_entries, scan_entries
from weir.state.tables.timers.time_first import time_bytes


def packed(end_ms, entries, known=pane_packing.NO_KEYS):
    """``entries``: (key group, user key, cells, presence bits)."""
    return pane_packing.pack_pane(
        end_ms,
        weir_keys.KeyColumn.from_list([key for _, key, _, _ in entries]),
        np.array([group for group, _, _, _ in entries], dtype=np.uint16),
        np.array([cells for _, _, cells, _ in entries], dtype=np.int64),
        np.array([[bits] for _, _, _, bits in entries], dtype=np.uint8),
        known,
    )


def unpacked(pane, cell_count, known=pane_packing.NO_KEYS):
    found = pane_packing.unpack_panes([pane], cell_count, known)
    assert set(found.ends_ms.tolist()) == {pane.end_ms}
    columns = (
        found.groups.tolist(),
        found.keys.to_list(),
        found.cells.tolist(),
        found.presence[:, 0].tolist(),
    )
    return list(zip(*columns, strict=True))


def known_of(*panes):
    return pane_packing.known_keys({pane.end_ms: [pane] for pane in panes}, 4)


def integer(number):
    return (number + 2**63).to_bytes(8, "big")


INTEGERS = [(3, integer(7), [2, -80], 3), (3, integer(5), [1, -16], 3), (1, integer(9), [1, 4], 3)]
TEXTS = [(0, b"anne", [300], 1), (0, b"ann", [1], 1), (0, b"bo", [0], 0)]


def test_golden_bytes_of_integer_keys():
    first, second = packed(10, INTEGERS).stored(7)
    assert first[0].hex() == "0001" + "0007" + "0170" + "800000000000000a" + "0000"
    assert first[1].hex() == (
        "02" + "01" + "0100" + "0200" + "08000000"
        "0900000000000080" + "00"
        "03"
        "00" + "02" + "0000"
        "00" + "08" + "0000"
    )  # fmt: skip
    assert second[0].hex() == "0003" + "0007" + "0170" + "800000000000000a" + "0000"
    assert second[1].hex() == (
        "02" + "01" + "0200" + "0200" + "10000000"
        "0500000000000080" + "02" + "02"
        "03"
        "00" + "02" + "00" + "01" + "02"
        "00" + "9f01" + "06" + "01" + "01"
    )  # fmt: skip


def test_golden_bytes_of_other_keys_some_of_which_lack_a_value():
    ((key, value),) = packed(-5, TEXTS).stored(7)
    assert key.hex() == "0000" + "0007" + "0170" + "7ffffffffffffffb" + "0000"
    assert value.hex() == (
        "02" + "02" + "0300" + "0100" + "09000000"
        "0003616e6e" + "030165" + "0002626f"
        "01" + "01" + "00"
        "00" + "00" + "00" + "86" + "82c70200"
    )  # fmt: skip


def test_golden_bytes_of_a_pane_that_refers_to_another_and_of_small_numbers():
    known = known_of(packed(10, [(1, b"key %02d" % number, [0, 0], 3) for number in range(20)]))
    numbers = [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    entries = [(1, b"key %02d" % number, [number % 3, 500 * (number % 3) + number], 3) for number in numbers]
    pane = packed(20, [(1, b"kez", [900, 450_000], 3), *entries], known)
    ((key, value),) = pane.stored(7)
    assert key.hex() == "0001" + "0007" + "0170" + "8000000000000014" + "0000"
    assert value.hex() == (
        "02" + "04" + "0e00" + "0200" + "51000000"
        "0a00000000000000" + "0d00" + "01000000" + "01" + "0100"
        "00036b657a"
        "03"
        "00" + "00" + "00" + "86" + "0280800010100002024040f8ff11"
        "03" + "e807" + "0e" + "00" + "04" + "7b35014286cade"
    )  # fmt: skip
    assert unpacked(pane, 2, known) == [*entries, (1, b"kez", [900, 450_000], 3)]


def test_rows_of_version_1_are_read():
    integers = (
        "01" + "01" + "0200" + "0200" + "10000000"
        "0500000000000080" + "02" + "02"
        "03"
        "0100000000000000" + "00" + "01" + "02"
        "b0ffffffffffffff" + "06" + "01" + "01"
    )  # fmt: skip
    pane = packed_rows.packed_from(10, [(3, bytes.fromhex(integers))])
    assert unpacked(pane, 2) == [INTEGERS[1], INTEGERS[0]]
    texts = (
        "01" + "02" + "0300" + "0100" + "09000000"
        "0003616e6e" + "030165" + "0002626f"
        "01" + "01" + "00"
        "0000000000000000" + "00" + "09" + "01580200"
    )  # fmt: skip
    pane = packed_rows.packed_from(-5, [(0, bytes.fromhex(texts))])
    assert unpacked(pane, 1) == [TEXTS[1], TEXTS[0], TEXTS[2]]
    known = known_of(pane)
    assert unpacked(packed(10, TEXTS, known), 1, known) == [TEXTS[1], TEXTS[0], TEXTS[2]]


INTEGER_KEYS = st.one_of(st.integers(0, 40), st.integers(-(2**63), 2**63 - 1)).map(integer)
KEYS = st.one_of(st.binary(max_size=12), INTEGER_KEYS)
CELL = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 40),
    st.floats(width=32).map(lambda value: int(np.float64(value).view(np.int64))),
)


#: Cells of an entry: anything, or sums of some rows and their number, also with one that stands out.
FREE = st.lists(CELL, min_size=9, max_size=9)
SUMS = st.tuples(st.integers(0, 9), st.integers(-40, 40), st.sampled_from([0, 0, 0, 2**40])).map(
    lambda drawn: [drawn[0], 500 * drawn[0] + drawn[1] + drawn[2], *[drawn[1]] * 7]
)


def columns(data, keys, cell_count):
    """Key groups, cells and presence of keys."""
    rows = st.lists(data.draw(st.sampled_from([FREE, SUMS])), min_size=len(keys), max_size=len(keys))
    cells = np.array(data.draw(rows), dtype=np.int64)[:, :cell_count].copy()
    presence = np.full((len(keys), (cell_count + 7) // 8), 1, dtype=np.uint8)
    if data.draw(st.booleans()):
        bits = st.lists(st.integers(0, 255), min_size=presence.size, max_size=presence.size)
        presence[:] = np.array(data.draw(bits)).reshape(presence.shape)
    return np.array([sum(key) % 3 for key in keys], dtype=np.uint16), cells, presence


def check_packed(keys, groups, cells, presence, known=pane_packing.NO_KEYS):
    """Pack, unpack and compare; returns the pane."""
    pane = pane_packing.pack_pane(3, weir_keys.KeyColumn.from_list(keys), groups, cells, presence, known)
    found = pane_packing.unpack_panes([pane], cells.shape[1], known)
    order = sorted(range(len(keys)), key=lambda entry: (groups[entry], keys[entry]))
    again = sorted(range(len(keys)), key=lambda entry: (found.groups[entry], found.keys.to_list()[entry]))
    if not pane.referred_ms():
        assert again == list(range(len(keys)))
    assert [found.keys.to_list()[entry] for entry in again] == [keys[entry] for entry in order]
    assert found.groups[again].tolist() == groups[order].tolist()
    assert found.cells[again].tolist() == cells[order].tolist()
    assert found.presence[again].tolist() == presence[order].tolist()
    return pane


@settings(max_examples=cases(20), deadline=None)
@given(st.data(), st.integers(1, 9), st.booleans(), st.sampled_from([3, 4_096]))
def test_what_is_packed_comes_out_as_it_was(data, cell_count, integers, row_entries):
    of_one_form = st.lists(INTEGER_KEYS if integers else KEYS, min_size=1, unique=True)
    keys = data.draw(of_one_form)
    with mock.patch.object(pane_packing, "ROW_ENTRIES_MAX", row_entries):
        first = check_packed(keys, *columns(data, keys, cell_count))
        known = pane_packing.known_keys({3: [first]}, 3)
        some = data.draw(st.lists(st.sampled_from(keys), unique=True))
        others = [key for key in data.draw(of_one_form) if key not in keys]
        both = [*others, *some]
        if both:
            pane = check_packed(both, *columns(data, both, cell_count), known)
            assert pane.referred_ms() == ([3] if 2 * len(some) >= len(both) else [])


def test_a_group_of_many_entries_has_several_rows():
    entries = [(2, integer(number), [number % 5], 1) for number in range(10_000)]
    pane = packed(10, entries)
    rows = pane.stored(7)
    assert [key[-2:] for key, _ in rows] == [b"\0\0", b"\0\1", b"\0\2"]
    again = packed_rows.packed_from(10, [(2, value) for _, value in rows])
    assert unpacked(again, 1) == entries
    assert pane.nbytes < 10_000
    known = known_of(again)
    other = packed(20, [*entries[5_000:], (2, integer(-1), [0], 1)], known)
    assert other.referred_ms() == [10]
    assert len(other.stored(7)) == 2
    assert unpacked(other, 1, known) == [*entries[5_000:], (2, integer(-1), [0], 1)]


def damaged(change):
    pane = packed(10, [(0, b"ann", [300], 1), (0, b"bo", [0], 0)])
    data = bytearray(pane.data.tobytes())
    return packed_rows.packed_from(10, [(0, bytes(change(data) or data))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.__setitem__(0, 9), "has format version 9"),
        (lambda data: data[:-1], "does not have the form"),
        (lambda data: data[:4], "does not have the form"),
        (lambda data: data.__setitem__(2, 200), "does not have the form"),
        (lambda data: data.__setitem__(10, 3), "does not have the form"),
        (lambda data: data.__setitem__(11, 200), "does not have the form"),
        (lambda data: data.__setitem__(slice(6, 8), b"\xff\xff"), "does not have the form"),
    ],
)
def test_bytes_that_are_no_packed_pane_are_one_error(change, message):
    with pytest.raises(StateMismatchError, match=message):
        unpacked(damaged(change), 1)


def test_a_pane_of_other_cells_is_one_error():
    with pytest.raises(StateMismatchError, match="aggregates changed"):
        unpacked(packed(10, [(0, b"ann", [300, 4], 1)]), 1)


def test_readers_of_a_store_see_packed_entries_and_those_that_count_instead():
    backend = MemoryBackend()
    everything = {}

    def state_key(end_ms, key):
        return layout.encode_key(1, 7, time_bytes(end_ms) + key)

    for end_ms in (-10, 10, 20):
        entries = [(1, b"key %d" % number, [number], 1) for number in range(12)]
        for _, key, cells, _ in entries:
            everything[state_key(end_ms, key)] = encode_values(
                np.array([cells]), np.ones((1, 1), dtype=np.uint8)
            )
        backend.write(packed(end_ms, entries).stored(7))
    own = {
        state_key(10, b"key 3"): b"three",
        state_key(10, b"zoe"): b"new",
        state_key(30, b"key 1"): b"open",
        state_key(0, b"between"): b"between",
    }
    backend.write(list(own.items()))
    everything |= own
    backend.write([(layout.encode_key(2, 7, time_bytes(10) + b"other group"), b"")])
    listed = sorted(everything.items())
    first, last = state_key(-20, b""), state_key(40, b"")
    assert list(scan_entries(backend.scan, first, last)) == listed
    assert list(scan_entries(backend.scan, first, last, reverse=True)) == listed[::-1]
    start, stop = state_key(10, b"key 2"), state_key(20, b"key 5")
    within = [entry for entry in listed if start <= entry[0] < stop]
    assert list(scan_entries(backend.scan, start, stop)) == within
    assert list(scan_entries(backend.scan, start, stop, reverse=True)) == within[::-1]
    asked = [*everything, state_key(20, b"nobody"), state_key(50, b"key 1")]
    assert get_entries(backend.get_many, backend.scan, asked) == [*everything.values(), None, None]


def test_a_pane_that_is_packed_while_somebody_scans_is_there():
    backend = MemoryBackend()
    entries = [(1, b"key %d" % number, [number], 1) for number in range(12)]
    own = {
        layout.encode_key(1, 7, time_bytes(10) + key): encode_values(np.array([cells]), np.ones((1, 1), "u1"))
        for _, key, cells, _ in entries
    }
    backend.write(list(own.items()))
    pane = packed(10, entries)

    def scan(start, stop, *, reverse):
        found = backend.scan(start, stop, reverse=reverse)
        if start == packed_rows.range_of_group(1, 7)[0]:
            found = iter(list(found))
            backend.write(pane.stored(7), list(own))
        return found

    first, last = (layout.encode_key(1, 7, time_bytes(end_ms)) for end_ms in (0, 20))
    assert list(scan_entries(scan, first, last, reverse=False)) == sorted(own.items())


def test_readers_of_a_store_find_the_keys_of_other_panes_and_leave_out_what_is_over():
    backend = MemoryBackend()

    def entry(end_ms, number):
        key = layout.encode_key(1, 7, time_bytes(end_ms) + b"key %d" % number)
        return key, encode_values(np.array([[number]]), np.ones((1, 1), dtype=np.uint8))

    listed = {10: range(2, 9), 20: [1, 2, 4, 5, 9], 30: range(5, 9), 40: range(20, 22), 50: [21]}
    panes = {}
    for end_ms, known in ((10, None), (20, 10), (30, 10), (40, None), (50, 40)):
        entries = [(1, b"key %d" % number, [number], 1) for number in listed[end_ms]]
        panes[end_ms] = packed(
            end_ms, entries, pane_packing.NO_KEYS if known is None else known_of(panes[known])
        )
        assert panes[end_ms].referred_ms() == ([] if known is None else [known])
        backend.write(panes[end_ms].stored(7))
    everything = dict(sorted(entry(end_ms, n) for end_ms, numbers in listed.items() for n in numbers))
    first, last = (layout.encode_key(1, 7, time_bytes(end_ms)) for end_ms in (15, 100))
    within = [each for each in everything.items() if each[0] >= first]
    assert list(scan_entries(backend.scan, first, last)) == within
    assert list(scan_entries(backend.scan, first, last, reverse=True)) == within[::-1]
    assert get_entries(backend.get_many, backend.scan, list(everything)) == list(everything.values())
    backend.write(deletes=[key for key, _ in panes[10].stored(7)])
    within = [each for each in within if each[0] >= layout.encode_key(1, 7, time_bytes(40))]
    assert list(scan_entries(backend.scan, first, last)) == within


@settings(max_examples=cases(20), deadline=None)
@given(st.data())
def test_damaged_bytes_are_an_error_or_other_entries(data):
    known = known_of(packed(10, [(0, b"key %d" % number, [0, 0], 3) for number in range(9)]))
    entries = [(0, b"key %d" % number, [number % 2, number], 3) for number in range(3, 12)]
    value = bytearray(packed(20, entries, known).data.tobytes())
    at = data.draw(st.integers(0, len(value) - 1).filter(lambda at: at not in range(6, 10)))
    value[at] ^= data.draw(st.integers(1, 255))
    try:
        found = unpacked(packed_rows.packed_from(20, [(0, bytes(value))]), 2, known)
    except StateMismatchError:
        return
    assert len(found) == len(entries)
