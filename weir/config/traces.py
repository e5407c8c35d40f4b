"""Section ``traces`` of ``config.json``: where traces of checkpoints and rescales go."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from weir.config.section import Section, setting


class TracesConfig(Section):
    """Section ``traces``."""

    endpoint: str = setting(
        "",
        "OpenTelemetry collector that takes traces of checkpoints and rescales as OTLP over HTTP, such as "
        "`http://localhost:4318`; without a path `/v1/traces` is added. Needs `pip install 'weir[traces]'`. Empty: "
        "there are no traces.",
        pattern=r"^(https?://[^\s/]\S*)?$",
    )
    service_name: str = setting("weir", "`service.name` of the traces.", min_length=1)

    @field_validator("endpoint")
    @classmethod
    def _has_a_port_that_is_one(cls, endpoint: str) -> str:
        try:
            _ = urlsplit(endpoint).port
        except ValueError as error:
            raise PydanticCustomError("endpoint", "must be a URL with a port from 0 to 65535") from error
        return endpoint

    @property
    def url(self) -> str:
        """Where traces are sent, path included; empty: there are none."""
        if not self.endpoint:
            return ""
        parts = urlsplit(self.endpoint)
        return self.endpoint if parts.path not in ("", "/") else f"{self.endpoint.rstrip('/')}/v1/traces"
