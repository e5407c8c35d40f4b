"""Section ``security`` of ``config.json``: who may call the processes. docs/security.md says how to use it."""

from __future__ import annotations

from weir.config.section import Section, setting


class SecurityConfig(Section):
    """Section ``security``."""

    directory: str = setting(
        "",
        "Directory with the certificates and tokens that `weir security init` has made. All connections between "
        "processes are then encrypted, and both ends prove their role. Empty: the secret of `secret_file` counts.",
    )
    secret_file: str = setting(
        "",
        "File with the secret by which processes of one user know each other on one machine, where `directory` is "
        "empty. Made where it is absent; only its owner may read it. Empty: `weir/secret` in `$XDG_STATE_HOME`, or "
        "in `~/.local/state`.",
    )
    insecure: bool = setting(
        False,
        "Take calls of anybody who reaches the ports, and listen beyond this machine without certificates. For "
        "networks in which everybody is trusted.",
    )
    audit_file: str = setting(
        "",
        "File to which each action over HTTP is added, a JSON object a line. Empty: only the log has them.",
    )
