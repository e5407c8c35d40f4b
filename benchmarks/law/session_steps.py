"""Sessions, and what they must say, a row at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import weir
from benchmarks.law.cases import END_MS, Seen
from benchmarks.law.steps import Compare, Result, Step
from benchmarks.law.window_steps import TEXTS, build, build_all, build_late, build_process, listed, others

GAP_MS, LATENESS_MS, EARLY_MS = 1_500, 3_000, 2_000


@dataclass
class Shown:
    """A result of a session that counts, where results are changes."""

    #: Columns, without the kind of change.
    result: Result
    #: The pane, as long as the gap, that was the last one of the session.
    pane: int


@dataclass
class Session:
    """Rows of a key with no gap between them."""

    rows: list[Seen]
    #: How many of them were told.
    told: int = 0
    #: Rows in the order in which they came that were not told; the others come first.
    shown: list[Shown] = field(default_factory=list)

    @property
    def first_ms(self) -> int:
        """Of its rows."""
        return min(row.at for row in self.rows)

    @property
    def last_ms(self) -> int:
        """Of its rows."""
        return max(row.at for row in self.rows)

    @property
    def end_ms(self) -> int:
        """A gap after its last row, which still belongs to it."""
        return self.last_ms + GAP_MS


@dataclass
class Sessions:
    """Sessions with one result or several, each row by itself."""

    lateness_ms: int = 0
    results: str = "accumulating"
    #: They tell what they have at multiples of this.
    early_ms: int | None = None
    value: Callable[[list[Seen]], tuple[Any, ...]] = lambda rows: (len(rows), sum(row.v for row in rows))
    key: Callable[[Seen], tuple[Any, ...]] = lambda row: (row.k,)
    late: list[Seen] = field(default_factory=list)

    def run(self, rows: list[Seen]) -> list[Result]:
        """All that they say."""
        self._open: dict[Any, list[Session]] = defaultdict(list)
        self._mark = -END_MS
        said = [result for row in rows for result in self._take(row)]
        return said + list(self._advance(END_MS))

    def _take(self, row: Seen) -> Iterator[Result]:
        yield from self._advance(row.all_ms)
        if row.at + GAP_MS + self.lateness_ms < row.mark:
            self.late.append(row)
            return
        sessions = self._open[self.key(row)]
        near = [s for s in sessions if s.first_ms - GAP_MS <= row.at <= s.end_ms]
        told = [r for s in near for r in s.rows[: s.told]]
        new = [r for s in near for r in s.rows[s.told :]]
        whole = Session([*told, *new, row], len(told), [shown for s in near for shown in s.shown])
        self._open[self.key(row)] = sorted(
            [*(s for s in sessions if s not in near), whole], key=lambda session: session.first_ms
        )
        is_several = self.results == "changelog" and len(whole.shown) > 1
        if row.at + GAP_MS < self._mark and (whole.end_ms < self._mark or is_several):
            yield from self._tell(self.key(row), whole)

    def _advance(self, mark: int) -> Iterator[Result]:
        """What a watermark passes first comes first; no row comes in between, so that one multiple tells all."""
        early_ms, before = self.early_ms, self._mark
        if early_ms is not None and mark < END_MS and before // early_ms < mark // early_ms:
            yield from self._complete(
                (mark if before == -END_MS else before + early_ms) // early_ms * early_ms
            )
            for key, session in self._all():
                if len(session.rows) > session.told:
                    yield from self._tell(key, session)
        yield from self._complete(mark)

    def _complete(self, mark: int) -> Iterator[Result]:
        before, self._mark = self._mark, max(self._mark, mark)
        for key, session in self._all():
            if before <= session.end_ms < self._mark:
                yield from self._tell(key, session)
        over_ms = self._mark - self.lateness_ms
        for key, session in self._all():
            is_open = session.end_ms >= over_ms and len(session.shown) > 1
            if is_open and any(self._moves_on(session, shown, over_ms) for shown in session.shown):
                yield from self._tell(key, session)
        for key, sessions in list(self._open.items()):
            self._open[key] = [session for session in sessions if session.end_ms >= over_ms]

    @staticmethod
    def _moves_on(session: Session, shown: Shown, over_ms: int) -> bool:
        """Whether the rows of a pane are about to be put together with those of the next one."""
        end_ms = max(row.at for row in session.rows if row.at // GAP_MS == shown.pane) + GAP_MS
        return end_ms < over_ms and any(row.at + GAP_MS > end_ms for row in session.rows)

    def _all(self) -> list[tuple[Any, Session]]:
        return [(key, session) for key, sessions in list(self._open.items()) for session in sessions]

    def _tell(self, key: tuple[Any, ...], session: Session) -> Iterator[Result]:
        rows, told = session.rows, session.told
        session.told = len(rows)
        bounds = (*key, session.first_ms, session.end_ms)
        if self.results == "changelog":
            if len(rows) > told:
                yield from self._changes(session, (*bounds, *self.value(rows)))
        elif self.results == "discarding":
            if len(rows) > told:
                yield (*bounds, *self.value(rows[told:]), session.end_ms)
        else:
            yield (*bounds, *self.value(rows), session.end_ms)

    def _changes(self, session: Session, result: Result) -> Iterator[Result]:
        before = [shown.result for shown in sorted(session.shown, key=lambda shown: shown.result[-4:-2])]
        for shown in before[:-1]:
            yield (*shown, "delete", shown[-3])
        for shown in before[-1:]:
            yield (*shown, "update_before", shown[-3])
        yield (*result, "update_after" if before else "insert", session.end_ms)
        # One is told of the last pane, which is as long as the gap.
        session.shown = [Shown(result, session.last_ms // GAP_MS)]


def _in_order(rows: list[Seen]) -> list[Seen]:
    """Of several splits: late rows when the watermark of all has come to theirs, which no other rows wait for."""
    if all(row.all_ms == row.mark for row in rows):
        return rows
    late = sorted((row for row in rows if row.late), key=lambda row: row.mark)
    return [
        *(row for row in rows if not row.late),
        *(Seen(row.k, row.at, row.v, row.to, row.mark, row.mark) for row in late),
    ]


def model(**settings: Any) -> Callable[[list[list[Seen]]], list[Result]]:
    """Of :class:`Sessions`."""
    return lambda streams: Sessions(**settings).run(_in_order(streams[0]))


def _late(**settings: Any) -> Callable[[list[list[Seen]]], list[Result]]:
    def late_rows(streams: list[list[Seen]]) -> list[Result]:
        sessions = Sessions(**settings)
        sessions.run(_in_order(streams[0]))
        return [(row.k, row.at, row.v, row.to, row.at) for row in sessions.late]

    return late_rows


def _all_rows(row: Seen) -> tuple[Any, ...]:
    return ()


def _steps() -> Iterator[Step]:
    window = weir.session(GAP_MS)
    late: dict[str, Any] = {"allowed_lateness": LATENESS_MS}
    early: dict[str, Any] = {"early": weir.every(f"{EARLY_MS}ms", time="event")}
    yield Step("sessions", build(window), model())
    yield Step("sessions, added up before", build(window, pre_aggregate=True), model())
    yield Step("sessions of all rows", build_all(window), model(key=_all_rows), keys=0)
    yield Step("late rows of sessions", build_late(window), _late())
    yield Step("rows of sessions beyond lateness", build_late(window, **late), _late(lateness_ms=LATENESS_MS))
    yield Step("rows of sessions", build_process(window), model(value=listed), own_keys=True)
    told = model(value=listed, lateness_ms=LATENESS_MS)
    yield Step(
        "rows of sessions, late rows", build_process(window, **late), told, several="sessions", own_keys=True
    )
    told = model(key=_all_rows, lateness_ms=LATENESS_MS)
    yield Step("sessions of all rows, late rows", build_all(window, **late), told, several="sessions", keys=0)
    yield Step(
        "other aggregates of sessions",
        lambda streams, parallelism: (
            streams[0]
            .key_by("k")
            .window(window, allowed_lateness=LATENESS_MS)
            .aggregate("out", **TEXTS, parallelism=parallelism)
        ),
        model(lateness_ms=LATENESS_MS, value=others),
        several="sessions",
        own_keys=True,
    )
    ways: tuple[tuple[str, Compare | None], ...] = (
        ("accumulating", "sessions"),
        ("changelog", "folded"),
        ("discarding", None),
    )
    for results, several in ways:
        more: dict[str, Any] = {"results": results}
        told = model(early_ms=EARLY_MS, **more)
        yield Step(f"sessions, early, {results}", build(window, **early, **more), told, several=several)
        told = model(lateness_ms=LATENESS_MS, **more)
        yield Step(f"sessions, late rows, {results}", build(window, **late, **more), told, several=several)
        told = model(early_ms=EARLY_MS, lateness_ms=LATENESS_MS, **more)
        both = build(window, **early, **late, **more)
        yield Step(f"sessions, early and late, {results}", both, told, several=several)


STEPS = tuple(_steps())
