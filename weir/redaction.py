"""Takes credentials out of what is written for people: settings, parameters, addresses in messages.

Whatever writes configuration somewhere calls :func:`redacted`: the latency sidecar, ``/status``, ``python -m
weir.config``, refusals of settings. What processes send to each other is not changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

#: What stands in the place of a credential.
HIDDEN = "***"

_SECRET = (
    r"secret|token|passw|passphrase|credential|signature|api_?key|access_?key|account_?key|private_?key|pwd"
)
#: What ends with the last ``@`` of a stretch in which an address may be, from its beginning. Patterns below are tried
#: within them only: a peer may send 60,000 characters, and from each place where one may begin, to the end of the text,
#: they take half a minute.
_STRETCH_OF_URI = re.compile(r"(?<![^?#\s])[^?#\s]*@")
_STRETCH_OF_ADDRESS = re.compile(r"(?<![^\s/@,;'\"])[^\s/@,;'\"]+@(?=[\w\[])")
_STRETCH_OF_PASSWORD = re.compile(r"(?<![^\s@,;'\"])[^\s@,;'\"]+@(?=[\w\[])")
#: ``scheme://user:password@host``; a password may have a slash in it that should have been escaped.
_USER_OF_URI = re.compile(r"(?<=://)(?:[^/?#\s@:]*:[^?#\s]*|[^/?#\s]*)@")
#: ``user:password@host`` without a scheme, as etcd endpoints may be.
_USER_OF_ADDRESS = re.compile(r"(?<![^\s,;'\"=])[^\s/@:,;'\"=]+:[^\s/@,;'\"]+@")
_USERS = ((_STRETCH_OF_URI, _USER_OF_URI), (_STRETCH_OF_ADDRESS, _USER_OF_ADDRESS))
#: The password in addresses of either form.
_PASSWORD_OF_URI = re.compile(r"(?<=://)[^/?#\s@:]*:([^?#\s]*)@")
_PASSWORD_OF_ADDRESS = re.compile(r"(?<![^\s,;'\"=])[^\s/@:,;'\"=]+:(?!//)([^\s@,;'\"]+)@")
_PASSWORDS = ((_STRETCH_OF_URI, _PASSWORD_OF_URI), (_STRETCH_OF_PASSWORD, _PASSWORD_OF_ADDRESS))
#: ``secret_key=value`` in a query or a connection string. A name is read once, for the same reason.
_SETTING = re.compile(
    rf"((?<![\w.-])(?=[\w.-]*?(?:{_SECRET}))[\w.-]++\s*+=\s*+)(?:'[^']*'|\"[^\"]*\"|[^&#;,\s'\"]+)",
    re.IGNORECASE,
)
#: Names, numbers and paths of words.
_WORDS = re.compile(r"[A-Za-z_./ -]*|[0-9.]*")
#: Shorter ones are hidden only where something tells what they are, and words and numbers that are shorter than these:
#: nobody has such a name.
_KNOWN_BYTES_MIN, _LONG_BYTES_MIN, _KNOWN_MAX = 8, 16, 1_000
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)


class KnownSecrets:
    """Credentials that this process has met in its settings and parameters: they are hidden wherever they come up.

    An exception of a driver or of the job's own code may quote one without anything around it that tells what it is.
    """

    def __init__(self) -> None:
        #: By their forms, which are as JSON writes them, too; replaced as a whole, so that any thread may read.
        self._texts: tuple[str, ...] = ()

    def learn(self, value: Any) -> None:
        """Note the credentials in JSON-able values, as :func:`redacted` finds them; too many are not kept."""
        found = {text for text in _credentials(value) if _is_secretive(text)}
        forms = {form for text in found for form in (text, json.dumps(text)[1:-1], quote(text, safe=""))}
        kept = {*self._texts, *forms}
        if len(kept) <= _KNOWN_MAX:
            # A secret that holds another one goes first.
            self._texts = tuple(sorted(kept, key=len, reverse=True))

    def hidden(self, text: str) -> str:
        """Return a text without them."""
        for known in self._texts:
            if known in text:
                text = text.replace(known, HIDDEN)
        return text

    def masked(self, content: bytes) -> bytes:
        """Return an answer without them, of the same length."""
        for known in self._texts:
            form = known.encode()
            if form in content:
                content = content.replace(form, b"*" * len(form))
        return content


#: Those of this process.
KNOWN = KnownSecrets()


def _credentials(value: Any, *, is_secret: bool = False) -> Iterator[str]:
    """Texts that are, or are within, credentials."""
    if isinstance(value, str):
        if is_secret:
            yield value
        for stretches, password in _PASSWORDS:
            for stretch in stretches.finditer(value):
                yield from (match[1] for match in password.finditer(_with_the_one_before(stretch)))
        for match in _SETTING.finditer(value):
            yield match[0][len(match[1]) :].strip("'\"")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _credentials(item, is_secret=is_secret or names_secret(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _credentials(item, is_secret=is_secret)


def _is_secretive(text: str) -> bool:
    """Whether a text can be told from a name or a word, which logs have for other reasons, too."""
    if _WORDS.fullmatch(text):
        return len(text) >= _LONG_BYTES_MIN and text.isalnum()
    return len(text) >= _KNOWN_BYTES_MIN


def redacted(value: Any) -> Any:
    """A copy of JSON-able values without credentials.

    Texts lose what :func:`redacted_text` takes out; below a key that names a secret every text goes.
    """
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, Mapping):
        return {key: _hidden(item) if names_secret(key) else redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value


def redacted_text(text: str) -> str:
    """A text whose addresses have no user names, passwords and secret query parameters any more."""
    text = KNOWN.hidden(text)
    for stretches, user in _USERS:
        text = stretches.sub(partial(_without, user), text)
    return _SETTING.sub(rf"\g<1>{HIDDEN}", text)


def _without(user: re.Pattern[str], stretch: re.Match[str]) -> str:
    hidden = user.sub(f"{HIDDEN}@", _with_the_one_before(stretch))
    return hidden[1:] if stretch.start() else hidden


def _with_the_one_before(stretch: re.Match[str]) -> str:
    """A stretch and the character before it, which tells whether something may begin with the stretch."""
    return stretch.string[max(stretch.start() - 1, 0) : stretch.end()]


def names_secret(key: object) -> bool:
    """Whether what has this name is a secret."""
    return isinstance(key, str) and _SECRET_NAME.search(key) is not None


def _hidden(value: Any) -> Any:
    """The place of a secret; numbers and flags are none (``tokens_max``), nor is what is empty."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item) for item in value]
    return HIDDEN if isinstance(value, str) and value else value
