"""The load of one stage over the last minutes to an hour: its highest value, and whether it rises or falls. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: Pieces of time that are kept: an hour of look-ahead times four.
_PIECES_MAX = 240
#: A load rises or falls that does so over so many pieces, by this part of it at least.
_PIECES, _CHANGE_MIN = 3, 0.015
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

    def __init__(self, piece_s: float) -> None:
        """Begin; ``piece_s``: loads of so long are taken together."""
        self._piece_s = piece_s
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

    def is_moving(self) -> bool:
        """Whether it has been rising or falling for some pieces, so that soon another load will be there."""
        means = self._last_means()
        return len(means) == _PIECES and abs(means[-1] - means[0]) > _CHANGE_MIN * means[0]

    def expected(self, work: float, ahead_s: float) -> float:
        """What the load will be in so many seconds, if it has been rising for a while; else what it is."""
        means = self._last_means()
        is_rising = means == sorted(means) and len(means) == _PIECES and self.is_moving()
        if not is_rising:
            return work
        slope = (means[-1] - means[0]) / (self._piece_s * (_PIECES - 1))
        return min(work + slope * ahead_s, work * _EXPECTED_MAX)

    def _last_means(self) -> list[float]:
        """Return the means of the last complete pieces."""
        complete = list(self._pieces)[:-1]
        return [each.mean for each in complete[-_PIECES:]]
