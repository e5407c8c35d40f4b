"""The load of one stage over the last minutes to an hour: its highest value, and whether it rises or falls. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

#: Pieces of time that are kept at most.
_PIECES_MAX = 2_000
#: Loads are noted about so often.
_LOOK_S = 1.0
#: A load rises or falls that does so, from the first to the last third of the time, by this part of it at least, and of
#: what one subtask does.
_CHANGE_MIN = 0.015
#: A load rises or falls all the time that does so by this part of the whole, at least, from each third of the time to
#: the next.
_PART_MIN = 0.2
#: A load is expected to go on that has risen or fallen by so many standard errors, and if that is young by so many.
_ERRORS, _ERRORS_YOUNG = 2.5, 1.5
#: The load that is expected is at most so many times the present one.
_EXPECTED_MAX = 2.0


@dataclass(slots=True)
class _Piece:
    begin_s: float
    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.count


class LoadHistory:
    """Loads are busy seconds per second, over all subtasks, that would have been needed."""

    def __init__(self, piece_s: float, longest_s: float) -> None:
        """Begin.

        Args:
            piece_s: loads of so long are taken together, of longer if the whole time would have too many pieces or a
                piece no more than one look.
            longest_s: so long loads are kept: nobody asks for a longer time.
        """
        # The first and the last piece are in it in part only.
        self._piece_s = max(piece_s, _LOOK_S, longest_s / (_PIECES_MAX - 2))
        self._pieces: deque[_Piece] = deque(maxlen=_PIECES_MAX)

    def add(self, at_s: float, work: float) -> None:
        """Note a load; times ascend."""
        if not self._pieces or at_s - self._pieces[-1].begin_s >= self._piece_s:
            self._pieces.append(_Piece(at_s))
        piece = self._pieces[-1]
        piece.total += work
        piece.count += 1

    def highest(self, at_s: float, span_s: float) -> float | None:
        """The highest mean of a piece of the last so many seconds; None: it was not watched for so long.

        A standstill of a moment, after which a stage works off what waits, says little of what it needs.
        """
        if not self._pieces or self._pieces[0].begin_s > at_s - span_s:
            return None
        begin_s = at_s - span_s - self._piece_s
        return max(
            each.mean for each in takewhile(lambda each: each.begin_s > begin_s, reversed(self._pieces))
        )

    def is_moving(self, span_s: float, *, errors: float = 0.0) -> bool:
        """Whether it has been rising or falling over so many seconds, so that soon another load will be there.

        ``errors``: by more than so many standard errors, for loads differ within thirds of the time, too, on a busy
        machine.
        """
        thirds = self._thirds(span_s)
        if not thirds:
            return False
        difference = abs(_mean(thirds[-1]) - _mean(thirds[0]))
        if difference <= _CHANGE_MIN * max(_mean(thirds[0]), 1.0):
            return False
        return difference > errors * _standard_error(thirds)

    def slope(self, span_s: float, errors: float = _ERRORS) -> float:
        """Return by how much more each second it rises, or falls, over so many seconds; 0: not all the time.

        A load that was another one from one moment to the next neither rises nor falls: that is over.
        """
        if not self.is_moving(span_s, errors=errors):
            return 0.0
        means = [_mean(each) for each in self._thirds(span_s)]
        part = (means[1] - means[0]) / (means[-1] - means[0])
        return (means[-1] - means[0]) / (span_s * 2 / 3) if _PART_MIN <= part <= 1 - _PART_MIN else 0.0

    def expected(self, work: float, span_s: float, young_s: float, ahead_s: float) -> float:
        """The load in ``ahead_s`` if it rises over ``span_s``, or at least over ``young_s``; else ``work``."""
        slope = self.slope(span_s)
        slope = max(slope if slope > 0 else self.slope(young_s, _ERRORS_YOUNG), 0.0)
        return min(work + slope * ahead_s, work * _EXPECTED_MAX)

    def _thirds(self, span_s: float) -> list[list[float]]:
        """Return the means of pieces in three equal parts of the last so many seconds; empty: of less it is known."""
        size = max(round(span_s / 3 / self._piece_s), 1)
        means = [each.mean for each in self._pieces][:-1][-3 * size :]
        if len(means) < 3 * size:
            return []
        return [means[index : index + size] for index in range(0, 3 * size, size)]


def _mean(loads: Sequence[float]) -> float:
    return sum(loads) / len(loads)


def _standard_error(thirds: Sequence[Sequence[float]]) -> float:
    """Return that of the difference of the means of two thirds, by how much loads differ within all three."""
    size = len(thirds[0])
    if size < 2:
        return 0.0
    squares = sum((load - _mean(each)) ** 2 for each in thirds for load in each)
    return math.sqrt(2 * squares / (3 * (size - 1)) / size)
