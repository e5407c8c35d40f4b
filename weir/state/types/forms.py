"""A declared type as JSON, and which stored types another one reads."""

from __future__ import annotations

from typing import Any

#: A type as JSON, for snapshots: a name, or ``{"list": form}``, ``{"struct": [[name, form], ...]}``, ...
Form = Any


def describe(form: Form) -> str:
    """A form as text, for messages."""
    if not isinstance(form, dict):
        return str(form)
    ((kind, inner),) = form.items()
    if kind in ("struct", "dataclass", "map"):
        return f"{kind}<{', '.join(f'{name}: {describe(field)}' for name, field in inner)}>"
    if kind == "tuple":
        return f"({', '.join(map(describe, inner))})"
    return f"{kind}<{describe(inner)}>"


#: Bits of integers, by name.
INTEGERS = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "uint8": 8,
    "uint16": 16,
    "uint32": 32,
    "uint64": 64,
}


def reads(stored: Form, needed: Form) -> bool:
    """Return whether values of the stored type are values of the needed one: the same, narrower, or with fewer fields.

    Fields that are added come last and are nullable.
    """
    if stored == needed:
        return True
    if isinstance(stored, dict) and isinstance(needed, dict):
        if stored.keys() != needed.keys():
            return "nullable" in needed and reads(stored, needed["nullable"])
        ((kind, a),), ((_, b),) = stored.items(), needed.items()
        if kind in ("struct", "dataclass"):
            same = [name for name, _ in a] == [name for name, _ in b[: len(a)]]
            # Fields that came later are null in what is stored; those of a struct always may be.
            added = kind == "struct" or all(isinstance(y, dict) and "nullable" in y for _, y in b[len(a) :])
            return same and added and all(reads(x, y) for (_, x), (_, y) in zip(a, b, strict=False))
        return kind != "tuple" and reads(a, b)
    if isinstance(needed, dict):
        return "nullable" in needed and reads(stored, needed["nullable"])
    if stored == "float32" and needed == "float64":
        return True
    return isinstance(stored, str) and integer_reads(stored, needed)


def integer_reads(stored: str, needed: str) -> bool:
    """Return whether both are integers, and all values of the stored type are values of the needed one, a wider one."""
    if stored not in INTEGERS or needed not in INTEGERS:
        return False
    grows = INTEGERS[needed] > INTEGERS[stored]
    return grows and (not needed.startswith("u") or stored.startswith("u"))


def key_reads(stored: Form, needed: Form) -> bool:
    """Do :func:`reads` for keys of maps: wider integers have the same bytes, but not within tuples."""
    return stored == needed or (
        isinstance(needed, str) and needed != "uint64" and isinstance(stored, str) and reads(stored, needed)
    )
