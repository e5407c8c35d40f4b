"""The certificate of a process, its key and the authority that it trusts, as files that may be replaced meanwhile."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from weir.clock import Clock
from weir.errors import ConfigError
from weir.security.private_files import read_private
from weir.security.roles import Role

log = logging.getLogger("weir.security")

AUTHORITY_FILE = "ca.pem"
#: How often the files are looked at.
_LOOK_S = 1.0


@dataclass(frozen=True)
class TlsMaterial:
    """What the files hold, in PEM, and how often they have changed since the process began."""

    authority: bytes
    certificate: bytes
    key: bytes
    version: int


class TlsFiles:
    """Files of one role in a directory; any thread may ask."""

    def __init__(self, directory: Path, role: Role, clock: Clock) -> None:
        """Read them; ``clock`` tells when they are looked at again.

        Raises:
            ConfigError: one is absent, or they do not belong together, or others can read the key.
        """
        self.role = role
        self._clock = clock
        self.directory = directory
        self.authority_path = directory / AUTHORITY_FILE
        self.certificate_path = directory / f"{role}.pem"
        self.key_path = directory / f"{role}.key"
        self._lock = threading.Lock()
        self._stamps = self._now_stamps()
        self._looked_s = self._clock.monotonic_s()
        self._material = self._read(0)
        #: By whether they are of a server; with the version that they are of.
        self._contexts: dict[bool, tuple[ssl.SSLContext, int]] = {}

    def material(self) -> TlsMaterial:
        """What they hold now; what was there before where they do not belong together at the moment."""
        if self._clock.monotonic_s() - self._looked_s < _LOOK_S:
            return self._material
        with self._lock:
            self._looked_s = self._clock.monotonic_s()
            stamps = self._now_stamps()
            if stamps != self._stamps:
                try:
                    self._material = self._read(self._material.version + 1)
                except ConfigError as error:
                    # The second of the two may be written in a moment.
                    log.warning("certificates are not renewed yet: %s", error)
                else:
                    self._stamps = stamps
                    log.info("certificates were renewed from %s", self.directory)
            return self._material

    def calling(self) -> ssl.SSLContext:
        """Return what a connection of this process to another one uses, which needs a certificate, too."""
        return self._newest(server=False)

    def serving(self, *, asks_certificate: bool = True) -> ssl.SSLContext:
        """Return what a server uses for as long as it lives: new connections have the certificates of their time.

        ``asks_certificate``: False: the other end is a browser.
        """
        context = self._context(server=True)
        if not asks_certificate:
            context.verify_mode = ssl.CERT_NONE
            context.minimum_version = ssl.TLSVersion.TLSv1_2

        def renew(connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
            # Loaded anew in place, a context would go on to trust the authority of before. What it asks of the other
            # end stays.
            connection.context = self._newest(server=True)

        # With each handshake.
        context.sni_callback = renew
        return context

    def _newest(self, *, server: bool) -> ssl.SSLContext:
        """A context of what the files hold now."""
        version = self.material().version
        found = self._contexts.get(server)
        if found is None or found[1] != version:
            found = self._contexts[server] = self._context(server=server), version
        return found[0]

    def _context(self, *, server: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        if server:
            # Who goes on with an earlier session shows no certificate, though it may not be valid any more.
            context.num_tickets = 0
        try:
            context.load_verify_locations(self.authority_path)
            context.load_cert_chain(self.certificate_path, self.key_path)
        except OSError as error:
            raise ConfigError(
                f"security.directory: {self.certificate_path} and {self.key_path} do not belong together, or are "
                f"damaged ({error}); make them anew: weir security renew {self.directory}"
            ) from error
        return context

    def _read(self, version: int) -> TlsMaterial:
        setting = "security.directory"
        try:
            authority = self.authority_path.read_bytes()
            certificate = self.certificate_path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{setting}: {error.filename} cannot be read: {error.strerror}; make it: weir security init "
                f"{self.directory}"
            ) from error
        key = read_private(self.key_path, setting)
        # They may be from two renewals.
        self._context(server=True)
        return TlsMaterial(authority, certificate, key, version)

    def _now_stamps(self) -> tuple[int, ...]:
        return tuple(map(_stamp, (self.authority_path, self.certificate_path, self.key_path)))


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1
