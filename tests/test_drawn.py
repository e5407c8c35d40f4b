"""Values made of bytes: all that a strategy of Hypothesis makes are made, and what fails is found and made simple."""

import math
import random
import re

import pytest
from hypothesis import given, settings

from tests.drawn import (
    Choices,
    any_integers,
    booleans,
    dictionaries,
    drawn,
    finite_floats,
    integers,
    just,
    lists,
    one_of,
    sampled_from,
    texts,
    tuples,
)


def many(make, count=3000):
    rng = random.Random(1)
    return [make(Choices(rng.randbytes(200))) for _ in range(count)]


def test_every_value_of_a_small_range_is_made():
    assert set(many(integers(-3, 300), 10_000)) == set(range(-3, 301))
    assert set(many(one_of(just(None), booleans(), sampled_from("ab")))) == {None, False, True, "a", "b"}
    assert {len(found) for found in many(lists(just(1), 14))} == set(range(15))
    assert {len(found) for found in many(lists(just(1), 3, min_size=2))} == {2, 3}
    assert {len(found) for found in many(lists(just(1), 12, min_size=9))} == {9, 10, 11, 12}
    assert set(many(tuples(booleans(), integers(0, 1)))) == {(a, b) for a in (False, True) for b in (0, 1)}
    assert {tuple(found) for found in many(dictionaries(sampled_from("ab"), just(0), 4))} >= {
        (),
        ("a",),
        ("b", "a"),
    }


def test_numbers_and_texts_of_every_size_are_made():
    found = many(any_integers())
    assert {abs(number).bit_length() for number in found} == set(range(129))
    assert {number > 0 for number in found} == {False, True}
    floats = many(finite_floats())
    assert all(map(math.isfinite, floats))
    assert min(map(abs, floats)) < 1e-200
    assert max(map(abs, floats)) > 1e200
    assert any(number == round(number, 2) != round(number) for number in floats)
    characters = {character for text in many(texts(12)) for character in text}
    assert {len(character.encode()) for character in characters} == {1, 2, 3, 4}
    assert {"\0", "\n", '"', "\\"} <= characters


def test_after_the_end_of_the_bytes_everything_is_the_simplest():
    make = tuples(integers(5, 9), lists(just(1), 3), any_integers(), finite_floats(), texts(4))
    assert make(Choices(b"")) == (5, [], 0, 0.0, "")


def test_what_fails_is_found_and_told_in_its_simplest_form():
    @settings(max_examples=500, database=None, derandomize=True)
    @given(drawn(lists(integers(0, 9), 20), 60))
    def fails(found):
        assert sum(found) < 7, found

    with pytest.raises(AssertionError) as failed:
        fails()
    assert re.search(r"found=\[[0-9](, [0-9]){0,3}\],", "".join(failed.value.__notes__))
