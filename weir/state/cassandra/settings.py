"""Settings of single states that a database keeps: ``states`` of section ``taskManager.cassandra``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from weir.errors import ConfigError

#: How rows lie in the database: those of a key group together and in key order, or each for itself.
StateLayout = Literal["partitioned", "global"]


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Settings of one state; None: as ``weir.config.stores.CassandraConfig`` has it."""

    table: Annotated[str, Field(min_length=1)] = ""
    layout: StateLayout = "partitioned"
    buckets: Annotated[int, Field(ge=1, le=4096)] | None = None
    time_to_live_s: Annotated[int, Field(ge=0, le=630_720_000)] | None = None
    table_options: str | None = None
    counts: bool = False


_STATE = TypeAdapter(StateSettings)


def parse_states(texts: Iterable[str]) -> dict[str, StateSettings]:
    """Settings of single states, each as ``STATE.SETTING=VALUE``; the setting is after the last dot before ``=``.

    Raises:
        ConfigError: one of them has another form, or a value that its setting has not.
    """
    values: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        state, dot, setting = name.rpartition(".")
        where = f"taskManager.cassandra.states: {text!r}"
        if not equals or not dot or not state:
            raise ConfigError(f"{where} must be STATE.SETTING=VALUE, as in count.layout=global")
        if setting not in StateSettings.__dataclass_fields__:
            known = ", ".join(StateSettings.__dataclass_fields__)
            raise ConfigError(f"{where}: there is no setting {setting!r}; there are {known}")
        values.setdefault(state, {})[setting] = value
        try:
            _STATE.validate_python({setting: value}, strict=False)
        except ValidationError as error:
            raise ConfigError(f"{where}: {error.errors()[0]['msg']}") from error
    return {state: _STATE.validate_python(found, strict=False) for state, found in values.items()}
