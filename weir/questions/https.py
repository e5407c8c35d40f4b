"""HTTP of programs that ask a job: encrypted, and with a token, where their environment has certificates."""

from __future__ import annotations

import http.client
import os
import ssl
from pathlib import Path

from weir.errors import ConfigError
from weir.security.identity import section_of_environment
from weir.security.private_files import read_private
from weir.security.tls_files import AUTHORITY_FILE
from weir.security.tokens import TOKEN_FILES, Right

#: The variable with a token that goes before those of ``WEIR_SECURITY_DIRECTORY``.
TOKEN_VARIABLE = "WEIR_TOKEN"


def is_encrypted() -> bool:
    """Return whether programs in this environment ask by HTTPS."""
    return bool(section_of_environment().directory)


def open_connection(host: str, port: int, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection on which nothing was sent yet; ``host`` may have brackets.

    Raises:
        ConfigError: ``WEIR_SECURITY_DIRECTORY`` has no authority.
    """
    host = host.strip("[]")
    directory = section_of_environment().directory
    if not directory:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    authority = Path(directory) / AUTHORITY_FILE
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        raise ConfigError(f"WEIR_SECURITY_DIRECTORY: {authority} cannot be used: {error}") from error
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def token_headers() -> dict[str, str]:
    """Return the header with the token of this program; empty: it has none, or would send it in plain.

    Raises:
        ConfigError: the file of a token can be read by others than its owner.
    """
    directory = section_of_environment().directory
    if not directory:
        return {}
    token = os.environ.get(TOKEN_VARIABLE, "")
    for right in (Right.OPERATE, Right.LOOK):
        path = Path(directory) / TOKEN_FILES[right]
        if not token and path.exists():
            token = read_private(path, "WEIR_SECURITY_DIRECTORY").decode(errors="replace").strip()
    return {"Authorization": f"Bearer {token}"} if token else {}
