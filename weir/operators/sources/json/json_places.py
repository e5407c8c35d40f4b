"""Lists of which single values are wanted, made objects of these values, for the strict parsers of JSON lines."""

from __future__ import annotations

import json
from typing import Any

import orjson

from weir.operators.sources.json.json_values import BadLineError, Pairs, name_of
from weir.rows.nested_paths import Tree, has_places, object_key


class PlacedValues:
    """Writes lines anew, with what is wanted only: ``{"a": [5, 6]}`` as ``{"a": {"[1]": 6}}``.

    Args:
        wanted: what is wanted of a line, see :func:`weir.rows.nested_paths.path_tree`.
    """

    def __init__(self, wanted: Tree) -> None:
        self._wanted = wanted

    def line(self, raw: bytes) -> bytes:
        """The line anew; ``raw`` is a JSON object.

        Raises:
            BadLineError: what should be a list is none, or a name that is wanted occurs twice.
        """
        pairs = json.loads(raw, object_pairs_hook=Pairs, parse_int=_number, parse_float=_number)
        return orjson.dumps(_object(pairs, self._wanted))


def _number(text: str) -> orjson.Fragment:
    """Numbers stay as they are written."""
    return orjson.Fragment(text)


def _value(found: Any, wanted: Any, name: str) -> Any:
    """What is wanted of a value.

    Args:
        found: with :class:`Pairs` for objects.
        wanted: :class:`Tree` or a type.
        name: of the value, for messages.
    """
    if not isinstance(wanted, dict) or found is None:
        return _whole(found)
    if not has_places(wanted):
        return _object(found, wanted) if isinstance(found, Pairs) else _whole(found)
    if type(found) is not list:
        raise BadLineError(
            f"field {name} must be a list, not {name_of(orjson.loads(orjson.dumps(_whole(found))))}"
        )
    return {
        object_key(place): _value(found[place], inner, f"{name}[{place}]")
        for place, inner in wanted.items()
        if isinstance(place, int) and place < len(found)
    }


def _object(pairs: Pairs, wanted: Tree) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, inner in pairs:
        if key not in wanted:
            continue
        if key in made:
            raise BadLineError(f"field {key} occurs twice")
        made[key] = _value(inner, wanted[key], key)
    return made


def _whole(found: Any) -> Any:
    """A value with all that is in it."""
    if isinstance(found, Pairs):
        return {key: _whole(inner) for key, inner in found}
    return list(map(_whole, found)) if isinstance(found, list) else found
