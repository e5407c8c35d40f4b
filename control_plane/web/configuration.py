"""What ``/configuration``, the page and reports show of the settings."""

from __future__ import annotations

from typing import Any

from control_plane.composition import ControlPlane
from control_plane.web.views import ConfigurationView
from weir.redaction import HIDDEN, redacted


def configuration_view(control_plane: ControlPlane) -> ConfigurationView:
    """Settings without credentials."""
    scaling: dict[str, Any] = control_plane.autoscaling.config.model_dump(mode="json")
    # Tokens stand in arguments and paths of such hooks, with nothing around them that tells what they are.
    program, *arguments = scaling["hook_command"] or [""]
    scaling["hook_command"] = [program, HIDDEN] if arguments else scaling["hook_command"]
    scaling["hook_url"] = HIDDEN if scaling["hook_url"] else ""
    return ConfigurationView(
        control_plane=redacted(control_plane.config.model_dump(mode="json")), autoscaler=redacted(scaling)
    )
