"""What the bytes of a window's state mean, in the snapshot of its operator, so that a changed job is refused.

The snapshot is::

    {"kind": "window_aggregate", "version": 1, "late_rows": 3,
     "codec": {"values": 1, "keys": [["user", "bytes"]], "aggregates": [["sum", "amount", "int64"]],
               "window": {"kind": "sliding", "size_ms": 60000, "step_ms": 10000, "offset_ms": 0, "time": "event"}}}

Conditions may change: the bytes mean the same. Windows of several panes also have ``"panes": 2``, the version of packed
panes (``weir.state.tables.panes.packed_rows``), which may be lower in the state of before; what lacks it has none.
Sessions have ``"sessions": 2``: programs of before, which would tell sessions twice, refuse that. Sessions with
lateness have ``"allowed_lateness_ms"``. Snapshots of other windows have it beside the codec, also 0: programs of before
neither say it nor look at it. Steps whose own cells lie before those of aggregates that came later have
``"own_cells_at"``: how many are before them. Windows that keep rows have ``"rows"``: name and type of each column, and
whether rows may lack it; state of before has not, and is taken as it is. Windows whose results are taken back have
``"told_as"``: by result its function and its parameters; state of before has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from weir.author.operator import Json
from weir.errors import StateMismatchError
from weir.operators.keyed.state_codec import (
    fits_aggregates,
    fits_keys,
    form_text,
    key_form,
    renamed_keys_mend,
)
from weir.operators.windows.rows.row_aggregates import RowAggregates
from weir.specs.aggregate_functions import stored_function, stored_number
from weir.specs.arrow_form import arrow_form
from weir.specs.window_process import WindowProcessSpec
from weir.specs.windows import WindowAggregateSpec
from weir.specs.words import duration_words
from weir.state.tables.cells.accumulators import FORMAT_VERSION
from weir.state.tables.panes.packed_pane_kernels import VERSION

_PACKED_FROM = ("sliding", "cumulative")
#: 2: an entry of a session that is over is told by the place of its key group, not by being empty.
_SESSIONS_VERSION = 2
#: May be lower in the state of before, or lack.
_VERSIONS = ("panes", "sessions")
#: How results are made of cells, of windows whose results are taken back.
_TOLD_AS = "told_as"
#: In snapshots.
LATENESS = "allowed_lateness_ms"
_MEND = "start without the checkpoint, or give the step another name if it may begin with empty state"


def window_codec(spec: WindowAggregateSpec) -> dict[str, Json]:
    """What a spec needs."""
    schema = spec.input_schema
    codec: dict[str, Json] = {
        "values": FORMAT_VERSION,
        "keys": [[name, key_form(schema, name)] for name in spec.key_columns],
        "aggregates": [[stored_function(a), a.column, stored_number(schema, a)] for a in spec.aggregates],
        "window": asdict(spec.window),
    }
    if spec.window.kind in _PACKED_FROM:
        codec["panes"] = VERSION
    if spec.window.kind == "session":
        codec["sessions"] = _SESSIONS_VERSION
    if spec.window.kind == "session" and spec.updates.lateness_ms:
        # Places are so much before the watermark.
        codec[LATENESS] = spec.updates.lateness_ms
    if spec.own_cells_at is not None:
        codec["own_cells_at"] = spec.own_cells_at
    if isinstance(spec, WindowProcessSpec):
        codec["kept"] = spec.kept_form
        if spec.kept_form == "rows":
            # Of our own aggregates, and where null may be, what rows of before lack is null.
            is_own = isinstance(spec.factory, RowAggregates)
            codec["rows"] = [
                [field.name, arrow_form(field.type), is_own or field.nullable] for field in spec.kept_schema
            ]
    if spec.window.kind == "global" or spec.updates.keeps_told:
        # Cells besides those of the aggregates.
        where = spec.updates.early is not None and spec.updates.early.where is not None
        codec["told"] = [spec.updates.results, "where"] if where else [spec.updates.results]
    if spec.updates.results == "changelog":
        codec[_TOLD_AS] = {
            each.output: [each.function, *each.parameters]
            for each in spec.aggregates
            if each.function != "dropped"
        }
    return codec


def check_window_codecs(step: str, snapshots: Iterable[Mapping[str, Any]], needed: Mapping[str, Any]) -> None:
    """Can the state of these snapshots be read?

    Raises:
        StateMismatchError: not all of it; the message has what is stored and what the job needs.
    """
    for snapshot in snapshots:
        for part in {**snapshot["codec"], **needed}:
            stored = snapshot["codec"].get(part)
            if part in _VERSIONS and (stored is None or 0 < stored <= needed.get(part, 0)):
                continue
            if part == "own_cells_at" and stored is None:
                # All aggregates that there were came before them.
                continue
            if part == "keys" and fits_keys(stored, needed[part]):
                continue
            if part == "aggregates" and fits_aggregates(stored, needed[part]):
                continue
            if part == _TOLD_AS and (stored is None or _tells_alike(stored, needed.get(part))):
                continue
            if part == "rows" and (stored is None or _fits_rows(stored, needed.get(part))):
                continue
            if stored != needed.get(part):
                renamed = renamed_keys_mend(stored, needed.get(part)) if part == "keys" else ""
                raise StateMismatchError(
                    f"step {step!r}: the checkpoint's state has {part} {form_text(stored)}; the job now needs "
                    f"{form_text(needed.get(part))}; {renamed}{_MEND}"
                )


def check_lateness(step: str, snapshots: Iterable[Mapping[str, Any]], needed_ms: int) -> None:
    """Is what windows take late rows for still there? Those that had left longer ago are gone, with their rows.

    Args:
        step: name of the step.
        snapshots: of windows that are no sessions.
        needed_ms: how long after their ends windows take rows now.

    Raises:
        StateMismatchError: a late row would tell a window anew, with itself alone.
    """
    # Savepoints of before do not say it.
    before_ms = min((snapshot.get(LATENESS, needed_ms) for snapshot in snapshots), default=needed_ms)
    if needed_ms > before_ms:
        before = f"for {duration_words(before_ms)}" if before_ms else "not at all"
        raise StateMismatchError(
            f"step {step!r}: in the checkpoint windows take late rows {before}, and those that left before are gone; "
            f"the job now takes late rows for {duration_words(needed_ms)}: leave allowed_lateness as it was, or {_MEND}"
        )


def _tells_alike(stored: Mapping[str, Any], needed: Mapping[str, Any] | None) -> bool:
    """Whether results of both are made in one way from what is kept: what was told is taken back as it was."""
    return needed is not None and all(stored.get(name, told) == told for name, told in needed.items())


def _fits_rows(stored: list[list[Any]], needed: list[list[Any]] | None) -> bool:
    """Whether rows that are kept have the columns that are needed, with their types; others may be null, or go."""
    kept = {name: form for name, form, _ in stored}
    return needed is not None and all(
        kept[name] == form if name in kept else may_lack for name, form, may_lack in needed
    )
