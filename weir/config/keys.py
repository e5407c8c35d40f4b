"""What ``config.json`` may hold, read off the models: for messages, variables and the reference."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from weir.config.models import Config
from weir.redaction import names_secret

#: Former spellings that are still accepted, with a warning.
ALIASES = {"taskManager.useMigration": "taskManager.useMigrate"}
#: Keys of earlier files that nothing ever read: still accepted, with a warning, whatever their value.
WITHOUT_EFFECT = frozenset({"controlPlane.consistent_control_grace_period"})


#: Variables that are none of the file's keys: the token of programs that ask, and what the autoscaler tells its hook,
#: which may start processes of Weir.
OTHER_VARIABLES = frozenset({"WEIR_TOKEN", "WEIR_JOB_ID", "WEIR_SLOTS_MISSING", "WEIR_REASON"})


@dataclass(frozen=True)
class Key:
    """One key of the file; ``dotted`` is how messages and ``--set`` spell it."""

    dotted: str
    field: FieldInfo

    @property
    def environment_name(self) -> str:
        """The variable that overrides it: ``WEIR_TASKMANAGER_BATCH_SIZE``."""
        return environment_name(self.dotted)

    @property
    def unit(self) -> str:
        """Unit of a number; empty if it has none."""
        return str(self._extra("unit"))

    @property
    def deprecated(self) -> bool:
        """Whether the key is accepted but does nothing."""
        return bool(self._extra("deprecated"))

    @property
    def default(self) -> Any:
        """The built-in value."""
        return self.field.default

    @property
    def allowed(self) -> str:
        """What the value may be, in words."""
        annotation = self.field.annotation
        if annotation is bool:
            return "true or false"
        if get_origin(annotation) is Literal:
            return " or ".join(f'"{choice}"' for choice in get_args(annotation))
        if annotation is str:
            pattern = next((limit.pattern for limit in self.field.metadata if hasattr(limit, "pattern")), "")
            if pattern:
                return f"text like {pattern}"
            return "text, not empty" if self._is_required else "text"
        if get_origin(annotation) is tuple:
            return "a list of texts, at least one" if self._is_required else "a list of texts"
        return ("an integer" if annotation is int else "a number") + self._range()

    @property
    def _is_required(self) -> bool:
        return any(getattr(limit, "min_length", 0) for limit in self.field.metadata)

    def _range(self) -> str:
        low = high = ""
        for limit in self.field.metadata:
            if hasattr(limit, "ge"):
                low = f"from {limit.ge}"
            elif hasattr(limit, "gt"):
                low = f"above {limit.gt}"
            elif hasattr(limit, "le"):
                high = f"to {limit.le}" if low.startswith("from") else f"and at most {limit.le}"
        if low.startswith("from") and not high:
            low = low.replace("from", "of at least")
        return "".join(f" {part}" for part in (low, high) if part)

    def _extra(self, name: str) -> object:
        extra = self.field.json_schema_extra
        return extra[name] if isinstance(extra, dict) else ""


@cache
def section_models() -> dict[str, type[BaseModel]]:
    """Every section by its dotted name; the whole file is ``""``."""
    found: dict[str, type[BaseModel]] = {"": Config}
    pending: list[tuple[str, type[BaseModel]]] = [("", Config)]
    while pending:
        prefix, parent = pending.pop(0)
        for field in parent.model_fields.values():
            if model := _section_model(field):
                dotted = f"{prefix}{field.alias}"
                found[dotted] = model
                pending.append((f"{dotted}.", model))
    return found


@cache
def all_keys() -> dict[str, Key]:
    """Every key that holds a value, by its dotted name, in the order of the file."""
    return {key.dotted: key for key in _keys_of(Config, "")}


def _keys_of(model: type[BaseModel], prefix: str) -> list[Key]:
    keys: list[Key] = []
    for field in model.model_fields.values():
        dotted = f"{prefix}{field.alias}"
        if section := _section_model(field):
            keys += _keys_of(section, f"{dotted}.")
        else:
            keys.append(Key(dotted, field))
    return keys


def _section_model(field: FieldInfo) -> type[BaseModel] | None:
    annotation: Any = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def environment_name(dotted: str) -> str:
    """The environment variable of a dotted key."""
    return "WEIR_" + dotted.replace(".", "_").upper()


def suggest(dotted: str) -> str:
    """How to go on after an unknown key: the nearest right spelling, or what its section holds."""
    known = [*all_keys(), *(name for name in section_models() if name)]
    section, _, leaf = dotted.rpartition(".")
    siblings = {_leaf(name): name for name in known if name.rpartition(".")[0] == section}
    by_leaf = {_leaf(name).lower(): name for name in known}
    near = difflib.get_close_matches(leaf, siblings, 1, 0.7)
    if near:
        return f"did you mean {siblings[near[0]]}?"
    near = difflib.get_close_matches(leaf.lower(), by_leaf, 1, 0.8)
    if near:
        return f"did you mean {by_leaf[near[0]]}?"
    names = ", ".join(siblings or [name for name in known if "." not in name])
    return f"{section if siblings and section else 'the file'} has the keys {names}"


def may_be_secret(name: str, known: Iterable[str]) -> bool:
    """Whether a key or variable that is not known may be meant for one with a secret: its value is not to be shown.

    Args:
        name: as it was written.
        known: right spellings.
    """
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in known], 1, 0.7)
    return any(map(names_secret, (name, *near)))


def _leaf(dotted: str) -> str:
    return dotted.rpartition(".")[2]
