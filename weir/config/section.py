"""What the sections of ``config.json`` are made of.

A key of the file is the field's name, except for the few in :data:`JSON_NAMES` that keep the spelling
under which they have always been known. Values are checked strictly: ``"8008"`` is not a port.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasGenerator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from weir.types import is_host, is_wildcard

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

#: Field name -> key in the file, where they differ.
JSON_NAMES = {
    "control_plane": "controlPlane",
    "task_manager": "taskManager",
    "file_name": "fileName",
    "operator_buffer_size": "operator_bufferSize",
    "use_hybrid": "useHybrid",
    "use_migrate": "useMigrate",
    "use_cache": "useCache",
    "use_relink": "useRelink",
    "rocksdb_path": "rocksDBPath",
}

#: A port to connect to.
Port = Annotated[int, Field(ge=1, le=65535)]
#: A port to listen on; 0: any free one, which the process then writes to its log.
ListenPort = Annotated[int, Field(ge=0, le=65535)]
#: A list in JSON, a tuple here, so that the model stays frozen; strict mode would refuse the list.
TextList = Annotated[tuple[str, ...], Field(strict=False)]


def setting(
    default: Any, meaning: str, unit: str = "", *, deprecated: bool = False, **constraints: Any
) -> Any:
    """A field with what the reference says about it; ``constraints`` go to pydantic's ``Field``."""
    return Field(
        default,
        description=meaning,
        json_schema_extra={"unit": unit, "deprecated": deprecated},
        **constraints,
    )


def check_advertised(host: str, advertised: str) -> None:
    """Refuse an address under which others could not reach this machine; for validators of pydantic.

    Raises:
        PydanticCustomError: it is one that only listens, or no address.
    """
    if is_wildcard(advertised) or (not advertised and is_wildcard(host)):
        raise PydanticCustomError(
            "advertised_host",
            "must be the name or address under which others reach this machine, since host is {host}",
            {"host": host},
        )
    if advertised and not is_host(advertised):
        raise PydanticCustomError("advertised_host", "must be a host name or an IP address, without a port")


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, no conversion between types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        validate_by_name=True,
        validate_by_alias=True,
        alias_generator=AliasGenerator(alias=lambda name: JSON_NAMES.get(name, name)),
    )
