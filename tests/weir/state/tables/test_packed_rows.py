"""The bytes of packed panes, and that what is packed comes out as it was."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir import keys as weir_keys
from weir.errors import StateMismatchError
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.tables import packed_rows
from weir.state.tables.accumulators import encode_values
from weir.state.tables.packed_reading import get_entries, scan_entries
from weir.state.tables.time_first import time_bytes


def packed(end_ms, entries):
    """``entries``: (key group, user key, cells, presence bits)."""
    return packed_rows.pack_pane(
        end_ms,
        weir_keys.KeyColumn.from_list([key for _, key, _, _ in entries]),
        np.array([group for group, _, _, _ in entries], dtype=np.uint16),
        np.array([cells for _, _, cells, _ in entries], dtype=np.int64),
        np.array([[bits] for _, _, _, bits in entries], dtype=np.uint8),
    )


def unpacked(pane, cell_count):
    found = packed_rows.unpack_panes([pane], cell_count)
    assert set(found.ends_ms.tolist()) == {pane.end_ms}
    columns = (
        found.groups.tolist(),
        found.keys.to_list(),
        found.cells.tolist(),
        found.presence[:, 0].tolist(),
    )
    return list(zip(*columns, strict=True))


def integer(number):
    return (number + 2**63).to_bytes(8, "big")


def test_golden_bytes_of_integer_keys():
    pane = packed(
        10, [(3, integer(7), [2, -80], 3), (3, integer(5), [1, -16], 3), (1, integer(9), [1, 4], 3)]
    )
    first, second = pane.stored(7)
    assert first[0].hex() == "0001" + "0007" + "0170" + "800000000000000a" + "0000"
    assert first[1].hex() == (
        "01" + "01" + "0100" + "0200" + "08000000"
        "0900000000000080" + "00"
        "03"
        "0100000000000000" + "00" + "00"
        "0400000000000000" + "00" + "00"
    )  # fmt: skip
    assert second[0].hex() == "0003" + "0007" + "0170" + "800000000000000a" + "0000"
    assert second[1].hex() == (
        "01" + "01" + "0200" + "0200" + "10000000"
        "0500000000000080" + "02" + "02"
        "03"
        "0100000000000000" + "00" + "01" + "02"
        "b0ffffffffffffff" + "06" + "01" + "01"
    )  # fmt: skip


def test_golden_bytes_of_other_keys_some_of_which_lack_a_value():
    pane = packed(-5, [(0, b"anne", [300], 1), (0, b"ann", [1], 1), (0, b"bo", [0], 0)])
    ((key, value),) = pane.stored(7)
    assert key.hex() == "0000" + "0007" + "0170" + "7ffffffffffffffb" + "0000"
    assert value.hex() == (
        "01" + "02" + "0300" + "0100" + "09000000"
        "0003616e6e" + "030165" + "0002626f"
        "01" + "01" + "00"
        "0000000000000000" + "00" + "09" + "01580200"
    )  # fmt: skip


KEYS = st.one_of(st.binary(max_size=12), st.integers(-(2**63), 2**63 - 1).map(integer))
CELL = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 40),
    st.floats(width=32).map(lambda value: int(np.float64(value).view(np.int64))),
)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 9), st.booleans())
def test_what_is_packed_comes_out_as_it_was(data, cell_count, integers):
    keys = data.draw(
        st.lists(KEYS.filter(lambda key: len(key) == 8) if integers else KEYS, min_size=1, unique=True)
    )
    presence = np.zeros((len(keys), (cell_count + 7) // 8), dtype=np.uint8)
    for entry in range(len(keys)):
        for cell in range(cell_count):
            if data.draw(st.booleans()) or integers:
                presence[entry, cell >> 3] |= 1 << (cell & 7)
    cells = np.array([[data.draw(CELL) for _ in range(cell_count)] for _ in keys], dtype=np.int64)
    groups = np.array([len(key) % 3 for key in keys], dtype=np.uint16)
    pane = packed_rows.pack_pane(3, weir_keys.KeyColumn.from_list(keys), groups, cells, presence)
    found = packed_rows.unpack_panes([pane], cell_count)
    order = sorted(range(len(keys)), key=lambda entry: (groups[entry], keys[entry]))
    assert found.keys.to_list() == [keys[entry] for entry in order]
    assert found.groups.tolist() == groups[order].tolist()
    assert found.cells.tolist() == cells[order].tolist()
    assert found.presence.tolist() == presence[order].tolist()


def test_a_group_of_many_entries_has_several_rows():
    entries = [(2, integer(number), [number % 5], 1) for number in range(10_000)]
    pane = packed(10, entries)
    rows = pane.stored(7)
    assert [key[-2:] for key, _ in rows] == [b"\0\0", b"\0\1", b"\0\2"]
    again = packed_rows.packed_from(10, [(2, value) for _, value in rows])
    assert unpacked(again, 1) == entries
    assert pane.nbytes < 10_000


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
        unpacked(packed(10, [(0, b"ann", [300], 1)]), 2)


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
