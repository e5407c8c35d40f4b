"""The load of one stage over the last minutes to an hour: its highest value, and whether it rises or falls. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: Pieces of time that are kept at most.
_PIECES_MAX = 2_000
#: A load rises or falls that does so, from the first to the last third of the time, by this part of it at least.
_CHANGE_MIN = 0.015
#: The load that is expected is at most so many times the present one.
_EXPECTED_MAX = 2.0


@dataclass(slots=True)
class _Piece:
    begin_s: float
    total: float = 0.0
    count: int = 0
    highest: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count


class LoadHistory:
    """Loads are busy seconds per second, over all subtasks, that would have been needed."""

    def __init__(self, piece_s: float, longest_s: float) -> None:
        """Begin.

        Args:
            piece_s: loads of so long are taken together, of longer if the whole time would have too many pieces.
            longest_s: so long loads are kept: nobody asks for a longer time.
        """
        # The first and the last piece are in it in part only.
        self._piece_s = max(piece_s, longest_s / (_PIECES_MAX - 2))
        self._pieces: deque[_Piece] = deque(maxlen=_PIECES_MAX)

    def add(self, at_s: float, work: float) -> None:
        """Note a load; times ascend."""
        if not self._pieces or at_s - self._pieces[-1].begin_s >= self._piece_s:
            self._pieces.append(_Piece(at_s))
        piece = self._pieces[-1]
        piece.total += work
        piece.count += 1
        piece.highest = max(piece.highest, work)

    def highest(self, at_s: float, span_s: float) -> float | None:
        """The highest load of the last so many seconds; None: it was not watched for so long."""
        if not self._pieces or self._pieces[0].begin_s > at_s - span_s:
            return None
        return max(each.highest for each in self._pieces if each.begin_s + self._piece_s > at_s - span_s)

    def is_moving(self, span_s: float) -> bool:
        """Whether it has been rising or falling over so many seconds, so that soon another load will be there."""
        means = self._thirds(span_s)
        return bool(means) and abs(means[-1] - means[0]) > _CHANGE_MIN * means[0]

    def expected(self, work: float, span_s: float, ahead_s: float) -> float:
        """The load in so many seconds, if it has been rising over ``span_s``; else what it is."""
        means = self._thirds(span_s)
        is_rising = means == sorted(means) and self.is_moving(span_s)
        if not is_rising:
            return work
        slope = (means[-1] - means[0]) / (span_s * 2 / 3)
        return min(work + slope * ahead_s, work * _EXPECTED_MAX)

    def _thirds(self, span_s: float) -> list[float]:
        """Return the means of three equal parts of the last so many seconds; empty: it was not watched for so long."""
        size = max(round(span_s / 3 / self._piece_s), 1)
        means = [each.mean for each in self._pieces][:-1][-3 * size :]
        if len(means) < 3 * size:
            return []
        return [sum(means[index : index + size]) / size for index in range(0, 3 * size, size)]
