"""Who this process is: set once by its entry point, from section ``security``.

A process of the operating system has one identity, whatever runs in it: the log's clients within jobs have that of
their task manager. A program of a user, which has no entry point of Weir, is a client by its environment.
"""

from __future__ import annotations

import os
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from weir.clock import SystemClock
from weir.config.security import SecurityConfig
from weir.errors import ConfigError
from weir.security.private_files import machine_secret, secret_path
from weir.security.proofs import ProofChecker, Prover
from weir.security.roles import Role
from weir.security.tls_files import TlsFiles
from weir.types import is_loopback


@dataclass(frozen=True)
class Identity:
    """Certificates, or a secret, or neither: then everybody is trusted."""

    role: Role
    tls: TlsFiles | None = None
    prover: Prover | None = None
    checker: ProofChecker | None = None

    @property
    def trusts_all(self) -> bool:
        """Return whether nothing is checked (``security.insecure``)."""
        return self.tls is None and self.checker is None


_lock = threading.Lock()
_current: Identity | None = None


def identity_of(role: Role, section: SecurityConfig) -> Identity:
    """What the settings say.

    Raises:
        ConfigError: a file is absent, or others can read it.
    """
    clock = SystemClock()
    if section.directory:
        return Identity(role, tls=TlsFiles(Path(section.directory), role, clock))
    if section.insecure:
        return Identity(role)
    secret = machine_secret(secret_path(section.secret_file, os.environ))

    def now_s() -> float:
        return clock.now_us() / 1e6

    return Identity(role, None, Prover(secret, role, now_s), ProofChecker(secret, now_s))


def begin(role: Role, section: SecurityConfig) -> Identity:
    """Take the settings on for this process; called once, by its entry point.

    Raises:
        ConfigError: as :func:`identity_of`.
    """
    global _current
    identity = identity_of(role, section)
    with _lock:
        _current = identity
    return identity


def current() -> Identity:
    """Return the identity of this process.

    Raises:
        ConfigError: no entry point has set it, and what ``WEIR_SECURITY_...`` say is wrong.
    """
    global _current
    found = _current
    if found is None:
        with _lock:
            found = _current
            if found is None:
                found = _current = identity_of(Role.CLIENT, section_of_environment())
    return found


def server_context() -> ssl.SSLContext | None:
    """Return what a server of this process encrypts with, whose callers are processes of Weir; None: nothing."""
    tls = current().tls
    return None if tls is None else tls.serving()


def section_of_environment() -> SecurityConfig:
    """The section for a program that reads no ``config.json``: ``WEIR_SECURITY_DIRECTORY`` and so on."""
    text = os.environ.get
    return SecurityConfig(
        directory=text("WEIR_SECURITY_DIRECTORY", ""),
        secret_file=text("WEIR_SECURITY_SECRET_FILE", ""),
        insecure=text("WEIR_SECURITY_INSECURE", "").lower() in ("1", "true", "yes", "on"),
    )


def check_reach(host: str, setting: str, section: SecurityConfig) -> None:
    """Refuse to listen beyond this machine without certificates.

    Raises:
        ConfigError: it would, and nobody has said that this is meant.
    """
    if not is_loopback(host) and not section.directory and not section.insecure:
        raise ConfigError(
            f"{setting} is {host}: other machines reach this process, and it has no certificates; make them with "
            "'weir security init DIR' and set security.directory or WEIR_SECURITY_DIRECTORY, or say --insecure where "
            "everybody is trusted"
        )
