"""Texts in memory by their codes, in blocks of which the oldest ones go."""

import random

import numpy as np
import pyarrow as pa
import pytest

from weir.errors import StateError
from weir.operators.windows.panes.known_texts import KnownTexts, as_bytes, texts_of


def text_of(code):
    return f"text {code}" * (code % 4)


def added(known, first, count, until_ms):
    texts = [text_of(code) for code in range(first, first + count)]
    known.add(first, as_bytes(pa.array(texts, pa.string())), until_ms)


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_texts_are_those_of_their_codes_until_they_go(dtype):
    made, known, codes = random.Random(3), KnownTexts(1 << 20), []
    at = 100
    for pane in range(60):
        # Blocks that follow one another are put together; after a gap one begins anew.
        at += made.choice([0, 0, 5])
        count = made.randrange(1, 9)
        added(known, at, count, pane)
        codes += [(code, pane) for code in range(at, at + count)]
        at += count
        if pane == 40:
            known.put_read(np.array([7, 3]), as_bytes(pa.array(["seven", "three"])), 45)
        if pane % 20 == 19:
            known.drop(pane - 10)
            wanted = [code for code, until in codes if until > pane - 10]
            made.shuffle(wanted)
            valid = np.array([made.random() < 0.8 for _ in wanted])
            assert known.are_known(np.array(wanted)).all()
            told = texts_of(np.array(wanted), valid, known, dtype)
            assert told.type == dtype
            given = [text_of(code) if there else None for code, there in zip(wanted, valid, strict=True)]
            assert [each.decode() if isinstance(each, bytes) else each for each in told.to_pylist()] == given
    assert not known.are_known(np.array([99, 3, 10**6])).any()
    assert known.memory_bytes < 1 << 14
    assert texts_of(np.array([5]), np.array([False]), known, dtype).to_pylist() == [None]


def test_texts_that_were_read_are_found_beside_those_that_came():
    known = KnownTexts(1 << 20)
    added(known, 50, 4, 10)
    known.put_read(np.array([7, 3]), as_bytes(pa.array(["seven", "three"])), 20)
    known.drop(5)
    assert known.of(np.array([7, 51, 3, 50])).to_pylist() == [
        b"seven",
        text_of(51).encode(),
        b"three",
        text_of(50).encode(),
    ]
    with pytest.raises(StateError, match="lacks a text"):
        known.of(np.array([7, 4]))


def test_the_oldest_go_where_there_is_no_room():
    known = KnownTexts(1)
    added(known, 1, 3, 10)
    added(known, 10, 3, 10)
    assert known.are_known(np.array([1, 3, 10, 12])).tolist() == [False, False, True, True]
