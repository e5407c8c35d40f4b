"""Whether texts are UTF-8 is what Python's own decoder says, whatever form they have."""

import random

import numpy as np
import pyarrow as pa
import pytest

from weir.rows.utf8 import are_utf8, wrong_texts

#: Characters of every length, and the first and last of each.
GOOD = [*"az\0\x7f\x80ü߿ࠀ€जᄀ한￿\ud7ff\ue000", "\U00010000", "\U0001f600", "\U0010ffff"]
#: Stray and missing bytes, overlong forms, surrogates, beyond the last character.
BAD = [
    b"\x80", b"\xbf", b"\xc3", b"\xe2\x82",
    b"\xf0\x9f\x98", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
    b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80",
    b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
    b"\xfe", b"\xff", b"\xc3\xc3\xa9", b"\xe2\xe2\x82\xac", b"\xe2\x82\xac\x80", b"\xf0\x9f\x98\x80\x80",
]  # fmt: skip


def is_right(value):
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def value_of(rng, share_of_bad):
    parts = [rng.choice(GOOD).encode() for _ in range(rng.choice([0, 1, 3, 20, 70]))]
    parts += [b"x" * rng.choice([0, 0, 1, 30, 64])]
    if rng.random() < share_of_bad:
        parts.append(rng.choice([*BAD, rng.randbytes(2)]))
    rng.shuffle(parts)
    return b"".join(parts)


def forms(values, rng):
    """The same texts in all forms: arrays, and which of the values each has."""
    binary = pa.array(values, pa.binary())
    plain = binary.view(pa.string())
    large = binary.cast(pa.large_binary()).view(pa.large_string())
    start = rng.randrange(len(values))
    stop = rng.randrange(start, len(values)) + 1
    yield plain, values
    yield large, values
    yield plain.slice(start, stop - start), values[start:stop]
    yield large.slice(start, stop - start), values[start:stop]
    yield binary.cast(pa.binary_view()).view(pa.string_view()), values
    yield plain.dictionary_encode(), values


@pytest.mark.parametrize("seed", range(60))
def test_as_python_says(seed):
    rng = random.Random(seed)
    share = rng.choice([0, 0, 0.02, 0.3])
    values = [
        None if rng.random() < 0.1 else value_of(rng, share) for _ in range(rng.choice([1, 3, 30, 200]))
    ]
    for column, own in forms(values, rng):
        wrong = [n for n, value in enumerate(own) if value is not None and not is_right(value)]
        batch = pa.RecordBatch.from_arrays([column], ["t"])
        assert are_utf8(column) is (not wrong), column.type
        assert wrong_texts(batch) == dict.fromkeys(wrong, "t"), column.type


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_texts_that_begin_within_a_character(width):
    """Together the bytes are UTF-8; cut at any place they are so only between characters."""
    data = "".join(GOOD * 5).encode()
    dtype = pa.string() if width is np.int32 else pa.large_string()
    for cut in range(len(data) + 1):
        offsets = np.array([0, cut, cut, len(data)], dtype=width)
        column = pa.Array.from_buffers(dtype, 3, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        assert are_utf8(column) is is_right(data[:cut]) is is_right(data[cut:])


def test_bytes_below_nulls_are_no_texts():
    offsets, data = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32)), pa.py_buffer(b"a\xff")
    column = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x01"), offsets, data])
    assert are_utf8(column)
    assert wrong_texts(pa.RecordBatch.from_arrays([column], ["t"])) == {}
