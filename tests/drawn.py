"""Values for Hypothesis that are made of bytes: it draws and remembers all of these at once.

Values drawn one by one took more than half of the time of tests with lists of steps. What these functions return makes
a value out of :class:`Choices`; :func:`drawn` makes a strategy of that. Bytes that are 0 make the shortest lists and
the first of several values, so that Hypothesis still finds a simple example of what fails.
"""

import struct

from hypothesis import strategies as st

#: Every fourth list has so many at most: short ones are cases of their own.
_FEW = 6


class Choices:
    """Takes numbers from bytes, and zeros after their end."""

    def __init__(self, data):
        self._data, self._at = data, 0

    def take(self, count):
        """The next bytes."""
        found = self._data[self._at : self._at + count]
        self._at += count
        return found.ljust(count, b"\0")

    def below(self, count):
        """A number from 0 to ``count`` - 1."""
        size = 1 if count <= 256 else (count.bit_length() + 15) // 8
        return int.from_bytes(self.take(size), "little") % count


def drawn(make, byte_count):
    """The strategy of what ``make`` makes of so many bytes."""
    return st.binary(min_size=byte_count, max_size=byte_count).map(lambda data: make(Choices(data)))


def just(value):
    return lambda choices: value


def integers(low, high):
    """From ``low`` to ``high``, both included."""
    return lambda choices: low + choices.below(high - low + 1)


def sampled_from(values):
    return lambda choices: values[choices.below(len(values))]


def booleans():
    return sampled_from([False, True])


def one_of(*makers):
    return lambda choices: makers[choices.below(len(makers))](choices)


def tuples(*makers):
    return lambda choices: tuple(make(choices) for make in makers)


def lists(make, max_size, min_size=0):
    def made(choices):
        longest = max_size if choices.below(4) else min(max_size, max(min_size, _FEW))
        return [make(choices) for _ in range(min_size + choices.below(longest - min_size + 1))]

    return made


def dictionaries(key, value, max_size):
    pairs = lists(tuples(key, value), max_size)
    return lambda choices: dict(pairs(choices))


def any_integers():
    """Of both signs and up to 128 bits: each number of bits is as likely as another."""

    def made(choices):
        bits = choices.below(129)
        number = int.from_bytes(choices.take(bits // 8 + 1), "little") & ((1 << bits) - 1)
        return -number if choices.below(2) else number

    return made


def finite_floats():
    """Any bits, if they are a finite number; short decimals."""

    def made(choices):
        if choices.below(2):
            (number,) = struct.unpack("<d", choices.take(8))
            return number if abs(number) < float("inf") else -0.0
        number = choices.below(20_000)
        return (-number if choices.below(2) else number) / 10 ** choices.below(5)

    return made


def texts(max_size):
    """Of ASCII with control characters, and of all that UTF-8 writes in two, three and four bytes."""
    ranges = [(0x20, 0x7F), (0, 0x20), (0x7F, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]

    def character(choices):
        low, stop = ranges[max(0, choices.below(9) - 3)]
        return chr(low + choices.below(stop - low))

    characters = lists(character, max_size)
    return lambda choices: "".join(characters(choices))
