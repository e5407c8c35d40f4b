"""Joins rows with an external store through an asynchronous function of the job's author."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from weir.author.operator import Operator, OperatorContext
from weir.errors import UserFunctionError
from weir.rows import row_watermarks
from weir.rows.python_rows import rows_batch
from weir.rows.python_values import row_dicts
from weir.rows.records import as_authors_see, system_schema, user_columns, watermarks_of
from weir.specs.lookups import LookupSpec

_Key = tuple[Any, ...]
_Found = Mapping[str, Any] | None


class LookupOperator(Operator):
    """Looks up the distinct keys of each batch, so many at a time as ``in_flight_max`` says, and adds what is found.

    A batch leaves when all of its keys are answered: rows keep their order, and nothing is under way at a barrier.
    The event loop belongs to the subtask's thread and runs while a batch waits. What was found, also that there is
    nothing, is remembered; it does not survive a restart.
    """

    def __init__(self, spec: LookupSpec) -> None:
        self._spec = spec
        #: By key when it is forgotten (monotonic seconds), and what was found; the latest found last.
        self._cache: OrderedDict[_Key, tuple[float, _Found]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, context: OperatorContext) -> None:
        """Make the event loop."""
        self._step = context.operator_name
        self._clock = context.clock
        self._loop = asyncio.new_event_loop()

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with what was found for their keys.

        Raises:
            UserFunctionError: the function raised, took too long, or returned another row than declared.
        """
        watermarks_ms = watermarks_of(batch)
        batch = as_authors_see(batch)
        on = batch.select(self._spec.on)
        values: list[_Key] = [tuple(row.values()) for row in row_dicts(on)]
        keys = list(map(_told_apart, values)) if _has_zones(on.schema) else values
        asked: dict[_Key, _Key] = {}
        for key, given in zip(keys, values, strict=True):
            asked.setdefault(key, given)
        positions = {key: position for position, key in enumerate(asked)}
        rows = [positions[key] for key in keys]
        found = self._find(asked)
        if self._spec.how == "inner":
            has_any = np.array([found[row] is not None for row in rows])
            if not has_any.all():
                batch = batch.filter(pa.array(has_any))
                watermarks_ms = None if watermarks_ms is None else watermarks_ms[has_any]
                rows = [row for row, is_there in zip(rows, has_any, strict=True) if is_there]
        if batch.num_rows:
            joined = self._joined(batch, found, rows)
            yield (joined if watermarks_ms is None else row_watermarks.with_column(joined, watermarks_ms))

    def _joined(self, batch: pa.RecordBatch, found: Sequence[_Found], rows: list[int]) -> pa.RecordBatch:
        schema = self._spec.schema
        nothing = dict.fromkeys(schema.names)
        is_left = self._spec.how == "left"
        loose = pa.schema([field.with_nullable(True) for field in schema])
        try:
            columns = rows_batch([nothing if one is None else dict(one) for one in found], loose)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise self._error(f"returned a value of another type than declared: {reason}") from error
        taken = columns.take(pa.array(rows, pa.int64()))
        user = len(user_columns(batch.schema))
        arrays = [*batch.columns[:user], *taken.columns, *batch.columns[user:]]
        fields = [field.with_nullable(field.nullable or is_left) for field in schema]
        out = system_schema(pa.schema([*list(batch.schema)[:user], *fields]))
        return pa.RecordBatch.from_arrays(arrays, schema=out)

    def _find(self, keys: Mapping[_Key, _Key]) -> list[_Found]:
        """What there is for distinct keys, remembered or asked for; nothing for those with a null.

        ``keys``: by what tells them apart, their values.
        """
        now_s = self._clock.monotonic_s()
        known: dict[_Key, _Found] = {}
        missing: list[_Key] = []
        for key, values in keys.items():
            cached = self._cache.get(key)
            if None in values:
                known[key] = None
            elif cached is not None and cached[0] > now_s:
                known[key] = cached[1]
            else:
                missing.append(key)
        if missing:
            assert self._loop is not None
            answers = self._loop.run_until_complete(self._ask([keys[key] for key in missing]))
            known.update(zip(missing, answers, strict=True))
            self._remember(missing, answers)
        return [known[key] for key in keys]

    def _remember(self, keys: list[_Key], answers: list[_Found]) -> None:
        if not self._spec.cache_rows:
            return
        until_s = self._clock.monotonic_s() + self._spec.cache_ttl_ms / 1000
        cache = self._cache
        for key, answer in zip(keys, answers, strict=True):
            cache[key] = (until_s, answer)
            cache.move_to_end(key)
        while len(cache) > self._spec.cache_rows:
            cache.popitem(last=False)

    async def _ask(self, keys: list[_Key]) -> list[_Found]:
        """The answers, in order; after an error the rest is cancelled."""
        free = asyncio.Semaphore(self._spec.in_flight_max)

        async def ask(key: _Key) -> _Found:
            async with free:
                return await self._answer(key)

        tasks = [asyncio.ensure_future(ask(key)) for key in keys]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _answer(self, key: _Key) -> _Found:
        timeout_s = self._spec.timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s) as limit:
                found = await self._spec.function(*key)
        except TimeoutError as error:
            if limit.expired():
                raise self._error(f"took longer than {timeout_s:g} s for {key!r}") from None
            raise self._error(f"raised {type(error).__name__} for {key!r}: {error}") from error
        except Exception as error:
            raise self._error(f"raised {type(error).__name__} for {key!r}: {error}") from error
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise self._error(
                f"returned {type(found).__name__} for {key!r}, not a dict of the declared columns or None"
            )
        names = self._spec.schema.names
        if found.keys() != set(names):
            missing, extra = sorted(set(names) - found.keys()), sorted(map(str, found.keys() - set(names)))
            raise self._error(
                f"returned another row than declared for {key!r}: missing {missing}, extra {extra}"
            )
        for field in self._spec.schema:
            if found[field.name] is None and not field.nullable:
                raise self._error(
                    f"returned a null in column {field.name!r} for {key!r}; declare it as weir.Nullable(...) if "
                    "that is right"
                )
        return found

    def _error(self, text: str) -> UserFunctionError:
        function = self._spec.function
        name = getattr(function, "__qualname__", type(function).__name__)
        return UserFunctionError(f"step {self._step!r}: function {name} {text}")

    def close(self) -> None:
        """Close the event loop."""
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._loop = None


def _has_zones(schema: pa.Schema) -> bool:
    return any(pa.types.is_timestamp(column) and column.tz is not None for column in schema.types)


def _told_apart(key: _Key) -> _Key:
    """Tell hours apart: for Python the two that a zone has twice, when its clock goes back, are equal."""
    return tuple((value, value.fold) if isinstance(value, datetime) else value for value in key)
