"""What fingerprints are made of: each value that a spec may hold, as JSON that says what it is and does.

Persisted as a digest (``weir.plan.fingerprints``), and so never to be changed without another version there. Nothing in
it is what Polars or pyarrow *show*, and no module path of Weir; ``tests/weir/specs/test_told_form.py`` has golden forms
of every kind of step.

=====================================  =====================================================================
value                                  form
=====================================  =====================================================================
None, Booleans, numbers, text          as they are
expression                             ``{"expression": tree}``, see ``weir.specs.canonical``
Arrow and Polars types, schemas        ``{"type": text}``, ``{"schema": [[name, text, nullable], ...]}``
tuple, list; set                       array; ``{"set": sorted array}``
dict                                   ``{"dict": sorted array of pairs}``
bytes; times; regular expression       ``{"bytes": hex}``; ``{"time": text}``; ``{"pattern": [text, flags]}``
Decimal, path, UUID, time zone         ``{"text": text}``
an item of an Enum                     ``{"is": class, "name": name}``
step                                   ``{"kind": kind, field: form, ...}``
dataclass                              ``{"is": class, field: form, ...}``
``functools.partial``                  ``{"partial": function, "args": array, "settings": {name: form}}``
function or class of Weir              ``"weir:"`` and its qualified name
another one                            qualified name, ``@`` and a digest of its source; its module does not count
one without source, such as ``len``    module, ``:`` and qualified name
an object that can be called           ``{"object": class}``: what it holds does not count
any other object                       ``{"object": qualified name of its class}``
=====================================  =====================================================================
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import hashlib
import json
import numbers
import pathlib
import re
import uuid
import zoneinfo
from typing import Any

import polars as pl
import pyarrow as pa

from weir.rows.schemas import column_type
from weir.specs.arrow_form import arrow_form, schema_form
from weir.specs.base import OperatorSpec, raised_defaults, told_fields
from weir.specs.canonical import expression_form
from weir.specs.kafka_values import Descriptors
from weir.specs.source_code import source_of

Json = Any

_DIGEST_DIGITS = 12


def told_form(value: Any) -> Json:
    """The form of a value; see the module.

    Raises:
        GraphError: a type has no form.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, tuple | list):
        return [told_form(item) for item in value]
    if isinstance(value, OperatorSpec):
        return {"kind": value.kind, **_fields(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"is": _code_form(type(value)), **_fields(value)}
    if isinstance(value, functools.partial):
        settings = {name: told_form(item) for name, item in value.keywords.items()}
        return {"partial": told_form(value.func), "args": told_form(value.args), "settings": settings}
    plain = _value_form(value)
    if plain is not None:
        return plain
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return _code_form(value)
    return {"object": _code_form(type(value)) if callable(value) else type(value).__qualname__}


def _fields(value: Any) -> dict[str, Json]:
    return told_fields(value, told_form) | raised_defaults(value)


def _value_form(value: Any) -> Json:
    """Return the form of a value of Arrow, Polars or Python; None: it is none of these."""
    if isinstance(value, pl.Expr):
        return expression_form(value)
    if isinstance(value, pa.Schema):
        return {"schema": schema_form(value)}
    if isinstance(value, pa.DataType):
        return {"type": arrow_form(value)}
    if isinstance(value, pl.DataType) or (isinstance(value, type) and issubclass(value, pl.DataType)):
        return {"type": arrow_form(column_type(value))}
    if isinstance(value, enum.Enum):
        return {"is": type(value).__qualname__, "name": value.name}
    if isinstance(value, dict):
        return {"dict": _ordered([[told_form(key), told_form(item)] for key, item in value.items()])}
    if isinstance(value, set | frozenset):
        return {"set": _ordered([told_form(item) for item in value])}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Descriptors):
        return {"bytes": value.data.hex()}
    if isinstance(value, dt.date | dt.time):
        return {"time": value.isoformat()}
    if isinstance(value, dt.timedelta):
        return {"time": value // dt.timedelta(microseconds=1)}
    if isinstance(value, re.Pattern):
        return {"pattern": [told_form(value.pattern), value.flags]}
    if isinstance(value, str | numbers.Number | pathlib.PurePath | uuid.UUID | zoneinfo.ZoneInfo):
        return {"text": str(value)}
    return None


def _ordered(items: list[Json]) -> list[Json]:
    return sorted(items, key=json.dumps)


def _code_form(target: Any) -> str:
    """Return the form of a function or a class; one of Weir is told by its name, as place and text may change."""
    module = getattr(target, "__module__", None) or ""
    if module.partition(".")[0] == "weir":
        return f"weir:{target.__qualname__}"
    try:
        source = source_of(target)
    except (OSError, TypeError):
        return f"{module}:{target.__qualname__}"
    return f"{target.__qualname__}@{hashlib.sha256(source.encode()).hexdigest()[:_DIGEST_DIGITS]}"
