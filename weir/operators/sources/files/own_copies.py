"""Copies of what an author's source gives and is given: it may go on with the same object."""

from __future__ import annotations

import copy
import datetime
import decimal
from typing import Any

import pyarrow as pa

_NEVER_CHANGE = {
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    decimal.Decimal,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    pa.RecordBatch,
    pa.Table,
}


def own_copy(value: Any) -> Any:
    """What a source gave, or is given, as nobody else changes it: it may go on with the same object."""
    kind = type(value)
    if kind in _NEVER_CHANGE:
        return value
    if kind is dict:
        return {key: own_copy(item) for key, item in value.items()}
    return [own_copy(item) for item in value] if kind is list else copy.deepcopy(value)
