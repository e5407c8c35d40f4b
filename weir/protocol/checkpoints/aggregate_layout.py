"""The order in which a step keeps its aggregates, and what becomes of it when the job changes. Pure.

Cells of aggregates lie side by side in the state, and never change their places: an aggregate that is added comes last,
one that is dropped leaves its cells unused. Cells that a step has besides, such as the first and last time of a
session, stay where they are, too: ``OWN_CELLS``. So a job that tells the same aggregates in another order finds each by
its name, and entries that were written before one was added only lack their last cells.

This is a persisted form, in the manifests of checkpoints: ``{"output", "function", "column", "number", "condition",
"cells"}`` for each aggregate, in the order of their cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from weir.errors import CheckpointError
from weir.protocol.checkpoints.renames import names_now

Json = Any

#: The name of an aggregate that was dropped.
DROPPED = ""


@dataclass(frozen=True)
class StoredAggregate:
    """An aggregate of a step, as its state knows it."""

    #: Name of its column; ``DROPPED``: the job has it no more.
    output: str
    #: As far as the bytes depend on it (``weir.specs.aggregate_functions.stored_function``).
    function: str
    column: str | None
    #: The type of its numbers.
    number: str | None
    #: The canonical form of its condition (``weir.specs.canonical``); empty: it has none. None: not known.
    condition: str | None
    #: 8 bytes each.
    cells: int

    def to_json(self) -> Json:
        """Return the aggregate for the manifest."""
        return asdict(self)

    def __str__(self) -> str:
        name, column = self.output or "(dropped)", self.column or ""
        of_type = f": {self.number}" if self.column and self.number else ""
        where = f" where {self.condition}" if self.condition else ""
        return f"{name}={self.function}({column}{of_type}){where}"


#: Stands where the cells lie that a step has besides its aggregates, if some of these come after.
OWN_CELLS = StoredAggregate(DROPPED, "own cells", None, None, "", 0)

#: All that stands where the state of windows has rows, of a program that kept these for first and last texts.
KEPT_ROWS = StoredAggregate(DROPPED, "kept rows", None, None, "", 0)

Layout = tuple[StoredAggregate, ...]


def layout_from_json(value: Json) -> Layout:
    """Read what :meth:`StoredAggregate.to_json` returned, of all aggregates of a step."""
    return tuple(StoredAggregate(**item) for item in value)


def renamed_layout(step: str, stored: Layout, names: Mapping[str, str]) -> Layout:
    """A layout with the names that aggregates have now.

    Args:
        step: its name.
        stored: in the checkpoint.
        names: then by now; those that it has not are left out, and so are names that it has already.

    Raises:
        CheckpointError: two names now stand for one then, or names have changed places.
    """
    known = {each.output for each in stored if each.output != DROPPED}
    taken = names_now(f"step {step!r}: aggregates", names, known)
    return tuple(replace(each, output=taken.get(each.output, each.output)) for each in stored)


@dataclass(frozen=True)
class FittedLayout:
    """What a step keeps from now on, and what has changed."""

    layout: Layout
    #: Names of aggregates that begin at their first value, and of those that are dropped.
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def fit_layout(
    step: str, stored: Layout, now: Layout, *, allow_dropped: bool, has_own_cells: bool = False
) -> FittedLayout:
    """Fit the aggregates of a job to the state that a checkpoint has of them.

    Args:
        step: its name.
        stored: in the checkpoint.
        now: as the job has them.
        allow_dropped: aggregates that the job has no more may go.
        has_own_cells: the step has cells besides, after those of its aggregates.

    Raises:
        CheckpointError: an aggregate has another form, or is gone without leave; with both forms.
    """
    by_name = {each.output: each for each in now}
    known = {each.output for each in stored}
    kept: list[StoredAggregate] = []
    dropped = []
    for each in stored:
        wanted = by_name.get(each.output) if each.output != DROPPED else None
        if wanted is not None:
            if not _reads(each, wanted):
                raise CheckpointError(
                    f"step {step!r}: aggregate {each.output!r} is {each} in the checkpoint, the job has {wanted}; "
                    "write it as it was, or give it another name if it may begin anew"
                )
            kept.append(replace(wanted, number=wanted.number or each.number))
            continue
        if each.output != DROPPED:
            dropped.append(each.output)
        kept.append(replace(each, output=DROPPED))
    if dropped and not allow_dropped:
        told = ", ".join(str(each) for each in stored if each.output in dropped)
        raise CheckpointError(
            f"step {step!r}: the checkpoint holds aggregates that the job has not got: {told}; give them back their "
            "names, say renamed_from= where they are called otherwise now, or let their state go with "
            "--allow-dropped-state"
        )
    added = [each for each in now if each.output not in known]
    if added and has_own_cells and OWN_CELLS not in kept:
        kept.append(OWN_CELLS)
    layout = (*kept, *added)
    return FittedLayout(layout, tuple(each.output for each in added), tuple(dropped))


def _reads(stored: StoredAggregate, now: StoredAggregate) -> bool:
    """Return whether an aggregate goes on with what is stored; what is not known fits anything."""
    same = (stored.function, stored.column, stored.cells) == (now.function, now.column, now.cells)
    conditions = stored.condition is None or stored.condition == now.condition
    return same and conditions and reads_number(stored.number, now.number)


def reads_number(stored: str | None, now: str | None) -> bool:
    """Return whether values of a type are stored as those of the type now; None: it is not known.

    Older checkpoints have one word for texts and bytes.
    """
    return None in (stored, now) or stored == now or (stored == "bytes" and now in ("string", "binary"))


def named_layout(codecs: Sequence[Sequence[Sequence[str | None]]], now: Layout) -> Layout | None:
    """The layout of a checkpoint of before names were kept: its aggregates are those of the job, in the same order.

    Args:
        codecs: of each subtask: function, column and number of each aggregate.
        now: as the job has them.

    Returns:
        None: they are others, or there are more of them than the job has.
    """
    longest = max(codecs, key=len, default=())
    if len(longest) > len(now):
        return None
    for codec in codecs:
        for (function, column, number), wanted in zip(codec, now, strict=False):
            if (function, column) != (wanted.function, wanted.column):
                return None
            if not reads_number(number, wanted.number):
                return None
    return tuple(now[: len(longest)])


def layouts_to_json(layouts: Mapping[str, Layout]) -> Json:
    """Return the layouts as JSON, by step."""
    return {step: [each.to_json() for each in layout] for step, layout in layouts.items()}


def layouts_from_json(value: Json | None) -> dict[str, Layout]:
    """Read what :func:`layouts_to_json` returned; None: nothing."""
    return {step: layout_from_json(layout) for step, layout in (value or {}).items()}
