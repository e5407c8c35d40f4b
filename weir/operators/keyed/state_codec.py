"""What the bytes of a keyed operator's state mean, so that a changed job is refused instead of misreading them.

The snapshot of a keyed operator holds its *codec*; a start from a checkpoint compares it with what the job needs now::

    {"kind": "keyed_aggregate", "version": 1, "distinct_keys": 3,
     "codec": {"values": 1, "keys": [["server", "string"]], "aggregates": [["sum", "amount", "int64"]]}}
    {"kind": "keyed_process", "version": 1,
     "codec": {"keys": ["server"], "states": {"total": {"kind": "value", "type": "int64"}}}}

A type is null as long as a subtask has had no rows, and then fits any. A codec without "states" is of the time when
users' operators kept bytes of their own: nothing of them is read, and ``--allow-dropped-state`` is needed to drop them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from weir.author.operator import Json, OperatorContext
from weir.author.timer_hooks import TIMERS_FORM
from weir.errors import StateMismatchError
from weir.protocol.checkpoints.aggregate_layout import reads_number
from weir.specs import KeyedAggregateSpec
from weir.specs.aggregate_functions import stored_function, stored_number
from weir.specs.arrow_form import arrow_form
from weir.state.tables.cells.accumulators import FORMAT_VERSION
from weir.state.types import INTEGERS, describe, integer_reads, key_reads, reads

_VERSION = 1
_WINDOWS_KEEP = "windows with an aggregate of texts, or a function of rows, keep rows, others keep numbers; "
_MEND = "start without the checkpoint, or give the step another name if it may begin with empty state"
#: Part of a form: see :func:`kept_form`.
_KEPT = "kept"


def kept_snapshots(context: OperatorContext, kind: str) -> dict[int, dict[str, Any]]:
    """What ``context.restored`` holds of a keyed operator, by subtask index.

    Raises:
        StateMismatchError: it is of another kind of step, or of a version that is not known.
    """
    kept = {index: value for index, value in context.restored.items() if value is not None}
    for value in kept.values():
        found = (value.get("kind"), value.get("version")) if isinstance(value, dict) else value
        if found != (kind, _VERSION):
            kinds = {kind, value.get("kind")} if isinstance(value, dict) else {kind}
            why = _WINDOWS_KEEP if kinds == {"window_aggregate", "window_process"} else ""
            raise StateMismatchError(
                f"step {context.operator_name!r}: the checkpoint holds the state of {found}, "
                f"this is {kind} of version {_VERSION}; {why}{_MEND}"
            )
    return kept


def counted_before(context: OperatorContext, kept: Mapping[int, Mapping[str, Any]], name: str) -> int:
    """Return what a subtask counted before the checkpoint; ``kept`` of :func:`kept_snapshots`.

    Each row is counted once over all subtasks: what those counted that are gone counts for the lowest one.
    """
    indices = context.subtask_indices or tuple(range(context.parallelism))
    is_lowest = context.subtask_index == min(indices)
    return sum(
        value[name]
        for index, value in kept.items()
        if index == context.subtask_index or (is_lowest and index not in indices)
    )


def keyed_snapshot(kind: str, codec: Json, **more: Json) -> Json:
    """The snapshot of a keyed operator."""
    return {"kind": kind, "version": _VERSION, "codec": codec, **more}


@dataclass(frozen=True)
class AggregateCodec:
    """Key columns and accumulators of an aggregation, in the order of their bytes."""

    #: Name and form of each key column.
    keys: tuple[tuple[str, str | None], ...]
    #: Function, column (None for a bare count) and number type of each accumulator.
    aggregates: tuple[tuple[str, str | None, str | None], ...]
    #: Version of the bytes of values.
    values: int = FORMAT_VERSION

    def to_json(self) -> Json:
        """Return the codec for the snapshot."""
        return {
            "values": self.values,
            "keys": [list(key) for key in self.keys],
            "aggregates": [list(aggregate) for aggregate in self.aggregates],
        }

    def __str__(self) -> str:
        columns = ", ".join(f"{function}({_typed(name, kind)})" for function, name, kind in self.aggregates)
        return f"{columns} by {', '.join(_typed(*key) for key in self.keys)} (format {self.values})"


def aggregate_codec(spec: KeyedAggregateSpec, schema: pa.Schema | None) -> AggregateCodec:
    """What a spec needs; types are known with the schema of the rows."""
    return AggregateCodec(
        keys=tuple((name, key_form(schema, name)) for name in spec.key_columns),
        aggregates=tuple((stored_function(a), a.column, stored_number(schema, a)) for a in spec.aggregates),
    )


def codec_from_json(value: Json) -> AggregateCodec:
    """Read what :meth:`AggregateCodec.to_json` returned."""
    return AggregateCodec(
        keys=tuple((name, form) for name, form in value["keys"]),
        aggregates=tuple((function, column, kind) for function, column, kind in value["aggregates"]),
        values=value["values"],
    )


def renamed_keys_mend(stored: Json, needed: Json) -> str:
    """Return how to say that key columns only have other names, for messages; "" if they do not.

    Both are lists, of names or of names and forms.
    """
    if not isinstance(stored, list | tuple) or not isinstance(needed, list | tuple):
        return ""
    then, now = ([key if isinstance(key, str) else key[0] for key in keys] for keys in (stored, needed))
    pairs = {new: old for old, new in zip(then, now, strict=False) if old != new}
    if len(then) != len(now) or not pairs:
        return ""
    renamed = ", ".join(f'"{new}": "{old}"' for new, old in pairs.items())
    columns = ", ".join(f'"{name}"' for name in now)
    return f"if a column only has another name, say key_by({columns}, renamed_from={{{renamed}}}); else "


def check_row_codecs(context: OperatorContext, kind: str, needed: Mapping[str, Json]) -> None:
    """Refuse kept rows of other keys, columns or orders.

    Raises:
        StateMismatchError: names what differs, and the mend.
    """
    for value in kept_snapshots(context, kind).values():
        if value["codec"] != needed:
            then, now = differing(value["codec"], needed)
            raise StateMismatchError(
                f"step {context.operator_name!r}: the checkpoint's rows are of {then}, the job now needs {now}; "
                f"{renamed_keys_mend(value['codec'].get('keys'), needed['keys'])}"
                "start without the checkpoint, or give the step another name if it may begin empty"
            )


def check_aggregate_codecs(step: str, stored: Collection[AggregateCodec], needed: AggregateCodec) -> None:
    """Can state that was written by these be read?

    Raises:
        StateMismatchError: not all of it; the message says what is stored and what the job needs.
    """
    for codec in stored:
        same = codec.values == needed.values and fits_keys(codec.keys, needed.keys)
        if not (same and fits_aggregates(codec.aggregates, needed.aggregates)):
            raise StateMismatchError(
                f"step {step!r}: the checkpoint's state is {codec}; the job now needs {needed}; "
                f"{renamed_keys_mend(codec.keys, needed.keys)}{_MEND}"
            )


def check_key_columns(step: str, stored: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    """Is a user's state by the same key columns?

    Raises:
        StateMismatchError: it is not.
    """
    before, now = stored.get("key_forms", []), needed["key_forms"]
    if stored["keys"] == needed["keys"] and not fits_key_forms(before, now):
        raise StateMismatchError(
            f"step {step!r}: in the checkpoint {', '.join(stored['keys'])} are of the form "
            f"{', '.join(map(str, before))}, in the job of the form {', '.join(map(str, now))}; {_MEND}"
        )
    if stored["keys"] != needed["keys"]:
        raise StateMismatchError(
            f"step {step!r}: the checkpoint's state is by {', '.join(stored['keys'])}, the job now keeps it by "
            f"{', '.join(needed['keys'])}; {renamed_keys_mend(stored['keys'], needed['keys'])}{_MEND}"
        )


def check_declared(step: str, stored: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    """Can states that were written under these types be read under those that are declared now?

    Args:
        step: name of the step.
        stored: by name of a state, its kind and its type (``weir.state.types.Form``).
        needed: in the same form; states that are not in ``stored`` begin empty, others are dropped.

    Raises:
        StateMismatchError: not all of them; the message has both forms.
    """
    for name in sorted(stored.keys() & needed.keys()):
        before, now = stored[name], needed[name]
        if not _reads_state(before, now):
            raise StateMismatchError(
                f"step {step!r}: state {name!r} is {_state_text(before)} in the checkpoint, the job declares "
                f"{_state_text(now)}; declare it as it was, give the state another name if it may begin empty, or "
                "start without the checkpoint"
            )


def check_timers(step: str, stored: Mapping[str, Any] | None) -> None:
    """Can timers that were written in this form be read? None: there were none.

    Raises:
        StateMismatchError: they were written by another version of Weir.
    """
    if stored is not None and stored != TIMERS_FORM:
        raise StateMismatchError(
            f"step {step!r}: the checkpoint's timers have the form {stored}; this version of Weir reads {TIMERS_FORM}; "
            f"{_MEND}"
        )


def check_form(step: str, stored: Json | None, needed: Json | None, unsaid: Json | None = None) -> None:
    """Refuse the states of windows of other rows; None: older checkpoints do not say, and other steps.

    Args:
        step: name of the step.
        stored: what the checkpoint says.
        needed: by the job.
        unsaid: what a checkpoint has that does not say; None: what is needed, or nothing.

    Raises:
        StateMismatchError: they are of others; the message has both.
    """
    stored = unsaid if stored is None else stored
    if isinstance(stored, Mapping) and isinstance(needed, Mapping):
        # Of parts that came later older checkpoints say nothing.
        stored = {**needed, **stored}
        if _fits_kept(stored.get(_KEPT), needed.get(_KEPT)):
            stored[_KEPT] = needed[_KEPT]
    if stored is not None and stored != needed:
        then, now = form_text(stored), form_text(needed)
        raise StateMismatchError(f"step {step!r}: the checkpoint has {then}, the job {now}; {_MEND}")


def differing(stored: Mapping[str, Json], needed: Mapping[str, Json]) -> tuple[str, str]:
    """Return texts of two codecs, without the parts in which they are the same; for messages."""
    parts = [part for part in {**stored, **needed} if stored.get(part) != needed.get(part)]
    then, now = ({part: codec.get(part) for part in parts} for codec in (stored, needed))
    return form_text(then), form_text(now)


def form_text(form: Json) -> str:
    """Return a text of what a codec says, for messages: ``at int64, code int64``; nulls within it are left out."""
    if isinstance(form, Mapping):
        told = ((name, form_text(value)) for name, value in form.items() if value is not None)
        return ", ".join(f"{name}: {text}" for name, text in told) or "none"
    if not isinstance(form, list | tuple):
        return "none" if form is None else str(form)
    texts = [form_text(item) for item in form if item is not None and item != ""]
    if not any(isinstance(item, list | tuple) for item in form):
        return " ".join(texts)
    is_deep = any(
        isinstance(part, list | tuple) for item in form if isinstance(item, list | tuple) for part in item
    )
    return " and ".join(f"({text})" for text in texts) if is_deep else ", ".join(texts)


def _reads_state(stored: Mapping[str, Any], needed: Mapping[str, Any]) -> bool:
    single = ("value", "reducing", "aggregating")
    if stored["kind"] != needed["kind"] and not {stored["kind"], needed["kind"]} <= set(single):
        return False
    if stored["kind"] != "map":
        return reads(stored["type"], needed["type"])
    (key, value), (key_now, value_now) = stored["type"]["map"], needed["type"]["map"]
    return key_reads(key[1], key_now[1]) and reads(value[1], value_now[1])


def _state_text(state: Mapping[str, Any]) -> str:
    return f"a {state['kind']} of {describe(state['type'])}"


def fits_keys(stored: Sequence[Sequence[str | None]], needed: Sequence[Sequence[str | None]]) -> bool:
    """Return whether stored keys are keys of the job: pairs of a column's name and its form."""
    same_names = [name for name, _ in stored] == [name for name, _ in needed]
    return same_names and fits_key_forms([form for _, form in stored], [form for _, form in needed])


def fits_aggregates(stored: Sequence[Sequence[str | None]], needed: Sequence[Sequence[str | None]]) -> bool:
    """Return whether the first of those that are needed are those that are stored; one that was dropped fits any."""
    if len(stored) > len(needed):
        return False
    return all(
        str(now[0]).startswith("dropped ") or (then[:2] == now[:2] and reads_number(then[2], now[2]))
        for then, now in zip(stored, needed, strict=False)
    )


def key_forms(schema: pa.Schema | None, names: Sequence[str]) -> list[str | None]:
    """The form of each key column that the schema has; see :func:`key_form`."""
    return [key_form(schema, name) for name in names]


def fits_key_forms(stored: Sequence[str | None], needed: Sequence[str | None]) -> bool:
    """Return whether each key column's stored values are values of its type in the job, under the same key bytes.

    The bytes alone do not tell it: those of true are those of 1, and those of a text are its UTF-8. Where a form is
    None, the type was not known. Older checkpoints have no forms, or those of ``_FORMS_OF_BEFORE``.
    """
    return all(_fits_key_form(*pair) for pair in zip(stored, needed, strict=False))


#: What checkpoints of before say of all types with bytes of one kind.
_FORMS_OF_BEFORE = {
    "integer": frozenset({*INTEGERS, "bool"}),
    "bytes": frozenset({"string", "binary"}),
}


def _fits_key_form(stored: str | None, needed: str | None) -> bool:
    if stored is None or needed is None or stored == needed:
        return True
    if stored == "bytes" and needed.startswith("fixed_size_binary"):
        return True
    return needed in _FORMS_OF_BEFORE.get(stored, ()) or integer_reads(stored, needed)


def key_form(schema: pa.Schema | None, name: str) -> str | None:
    """The form of a key column: its type; texts have one in each of Arrow's layouts, and so have bytes."""
    if schema is None or name not in schema.names:
        return None
    dtype = schema.field(name).type
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return "string"
    is_bytes = pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_binary_view(dtype)
    return "binary" if is_bytes else arrow_form(dtype)


def kept_form(schema: pa.Schema) -> dict[str, str]:
    """The form of rows that are kept (``weir.state.handles.stored_rows``): the type of each column."""
    return {field.name: arrow_form(field.type) for field in schema}


#: What checkpoints of before say of all columns whose bytes are of one kind.
_KEPT_FORMS_OF_BEFORE = {"integer": frozenset(INTEGERS), "bytes": frozenset({"string", "binary"})}


def _fits_kept(stored: Json, needed: Json) -> bool:
    """Return whether all kept values are values of the columns that the job has: of the same types, or narrower."""
    if not isinstance(stored, Mapping) or not isinstance(needed, Mapping) or stored.keys() != needed.keys():
        return False
    return all(
        then == now or now in _KEPT_FORMS_OF_BEFORE.get(then, ()) or integer_reads(then, now)
        for then, now in ((stored[name], needed[name]) for name in needed)
    )


def _typed(name: str | None, kind: str | None) -> str:
    return (name or "") + (f": {kind}" if name and kind else "")
