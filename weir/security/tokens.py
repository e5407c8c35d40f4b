"""Bearer tokens of people and programs that use HTTP: one that may look, one that may also operate."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from weir.clock import Clock
from weir.errors import ConfigError
from weir.security.private_files import read_private

log = logging.getLogger("weir.security")

#: How often the files are looked at.
_LOOK_S = 1.0
_BYTES_MIN, _BYTES_MAX = 16, 1_000


class Right(IntEnum):
    """What the holder of a token may do; a higher one includes the lower ones."""

    NONE = 0
    LOOK = 1
    OPERATE = 2


#: The file of each token in the directory of certificates.
TOKEN_FILES = {Right.LOOK: "look.token", Right.OPERATE: "operate.token"}


class Tokens:
    """Tokens of a directory, read anew when their files change; any thread may ask."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Read them.

        Raises:
            ConfigError: one cannot be read, is too short, or others can read it.
        """
        self._directory, self._clock = directory, clock
        self._stamps = self._now_stamps()
        self._looked_s = clock.monotonic_s()
        self._tokens = self._read(TOKEN_FILES)

    def right_of(self, token: str) -> Right:
        """Return what the holder of a token may do, in a time that does not tell how much of it is right."""
        self._look()
        given = token.encode(errors="replace")[:_BYTES_MAX]
        found = Right.NONE
        for right, known in self._tokens.items():
            if hmac.compare_digest(given, known):
                found = max(found, right)
        return found

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        stamps = self._now_stamps()
        if stamps == self._stamps:
            return
        # Whoever removes a file wants its token to end.
        there = {right: name for right, name in TOKEN_FILES.items() if (self._directory / name).exists()}
        self._tokens = {right: token for right, token in self._tokens.items() if right in there}
        try:
            self._tokens = self._read(there)
            self._stamps = stamps
            log.info("tokens were renewed from %s", self._directory)
        except ConfigError as error:
            # A file may be written in this moment; what was there before counts until then.
            log.warning("tokens are not renewed yet: %s", error)

    def _read(self, files: Mapping[Right, str]) -> dict[Right, bytes]:
        found = {}
        for right, name in files.items():
            path = self._directory / name
            token = read_private(path, "security.directory").strip()
            if not _BYTES_MIN <= len(token) <= _BYTES_MAX:
                raise ConfigError(
                    f"security.directory: {path} has {len(token)} bytes, and must have {_BYTES_MIN} to {_BYTES_MAX}"
                )
            found[right] = token
        return found

    def _now_stamps(self) -> tuple[int, ...]:
        stamps = []
        for name in TOKEN_FILES.values():
            try:
                stamps.append((self._directory / name).stat().st_mtime_ns)
            except OSError:
                stamps.append(-1)
        return tuple(stamps)
