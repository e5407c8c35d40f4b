"""Who may talk to the control plane's HTTP interface."""

from __future__ import annotations

from weir.config import ControlPlaneConfig
from weir.questions.guard import Admission, own_hosts


def admission(config: ControlPlaneConfig) -> Admission:
    """The lists that are in force: what is configured, and the names that the control plane has anyway."""
    return Admission(
        own_hosts(config.host, config.advertised_host, *config.allowed_hosts),
        frozenset(origin.rstrip("/") for origin in config.allowed_origins),
    )
