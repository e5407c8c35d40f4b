"""Takes credentials out of what is written for people: settings, parameters, addresses in messages.

Whatever writes configuration somewhere calls :func:`redacted`: the latency sidecar, ``/status``, ``python -m
weir.config``, refusals of settings. What processes send to each other is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: What stands in the place of a credential.
HIDDEN = "***"

_SECRET = (
    r"secret|token|passw|passphrase|credential|signature|api_?key|access_?key|account_?key|private_?key|pwd"
)
#: ``scheme://user:password@host``; a password may have a slash in it that should have been escaped.
_USER_OF_URI = re.compile(r"(?<=://)(?:[^/?#\s@:]*:[^?#\s]*|[^/?#\s]*)@")
#: ``user:password@host`` without a scheme, as etcd endpoints may be.
_USER_OF_ADDRESS = re.compile(r"(?<![^\s,;'\"=])[^\s/@:,;'\"=]+:[^\s/@,;'\"]+@(?=[\w\[])")
#: ``secret_key=value`` in a query or a connection string. Names are tried from their beginnings only: tried
#: from each letter, 5,000 of them, which a peer may send instead of its address, take two seconds.
_SETTING = re.compile(
    rf"((?<![\w.-])[\w.-]*(?:{_SECRET})[\w.-]*\s*=\s*)(?:'[^']*'|\"[^\"]*\"|[^&#;,\s'\"]+)", re.IGNORECASE
)
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)


def redacted(value: Any) -> Any:
    """A copy of JSON-able values without credentials.

    Texts lose what :func:`redacted_text` takes out; below a key that names a secret every text goes.
    """
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, Mapping):
        return {key: _hidden(item) if _names_secret(key) else redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value


def redacted_text(text: str) -> str:
    """A text whose addresses have no user names, passwords and secret query parameters any more."""
    text = _USER_OF_URI.sub(f"{HIDDEN}@", text)
    text = _USER_OF_ADDRESS.sub(f"{HIDDEN}@", text)
    return _SETTING.sub(rf"\g<1>{HIDDEN}", text)


def _names_secret(key: object) -> bool:
    return isinstance(key, str) and _SECRET_NAME.search(key) is not None


def _hidden(value: Any) -> Any:
    """The place of a secret; numbers and flags are none (``tokens_max``), nor is what is empty."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item) for item in value]
    return HIDDEN if isinstance(value, str) and value else value
