"""The database's client: asyncio over a C++ driver. What it needs of the settings, and what it leaves open."""

from __future__ import annotations

import gc
import logging
import socket
from dataclasses import dataclass
from pathlib import Path

from weir.config.stores import CassandraConfig
from weir.errors import FailureKind, StateError
from weir.state.cassandra.errors import Untyped, client_missing

_RECONNECT_MS, _RECONNECT_MS_MAX = 100, 1_000
_DDL_PROFILE = "weir_ddl"


@dataclass(frozen=True)
class Client:
    """The driver's client of one session."""

    cluster: Untyped

    def close(self) -> None:
        """Close the sockets by which the driver's threads wake the event loop; called when those have ended.

        The client has a pair for requests and one for its log, has no call that closes them, and leaves them to the
        garbage collector, which warns of each.
        """
        for each in (self.cluster, *gc.get_referents(self.cluster)):
            for inner in gc.get_referents(each):
                if isinstance(inner, socket.socket):
                    inner.close()


def make_client(settings: CassandraConfig) -> Client:
    """The client for a database; called in the thread of the event loop that it is to use.

    Raises:
        StateError: its package is not installed.
    """
    try:
        import acsylla
    except ImportError as error:
        raise client_missing(error) from error
    logging.getLogger("acsylla").setLevel(logging.CRITICAL)
    cluster = acsylla.create_cluster(
        list(settings.contact_points),
        port=settings.port,
        username=settings.username or None,
        password=settings.password or None,
        request_timeout=settings.dml_timeout_ms / 1e3,
        consistency=_consistency(settings.dml_consistency),
        **_tls(settings),
        load_balance_dc_aware=settings.local_datacenter or None,
        # What is tried again is decided by the session; and the client's own policy hides what the server says.
        retry_policy="fallthrough",
        constant_reconnect_delay_ms=None,
        exponential_reconnect_base_delay_ms=_RECONNECT_MS,
        exponential_reconnect_max_delay_ms=_RECONNECT_MS_MAX,
        # Not even critical: what the driver logs goes through the newest client, which may be closed.
        log_level="disabled",
    )
    cluster.create_execution_profile(
        _DDL_PROFILE,
        request_timeout=settings.ddl_timeout_ms,
        consistency=_consistency(settings.ddl_consistency),
    )
    return Client(cluster)


def _tls(settings: CassandraConfig) -> dict[str, object]:
    """Settings of the client for encrypted connections; none: they are not.

    Raises:
        StateError: a file cannot be read.
    """
    if not settings.tls_ca_file:
        return {}
    files = {
        "ssl_trusted_cert": "tls_ca_file",
        "ssl_cert": "tls_certificate_file",
        "ssl_private_key": "tls_private_key_file",
    }
    made: dict[str, object] = {"ssl_enabled": True}
    for name, setting in files.items():
        path = getattr(settings, setting)
        if not path:
            continue
        try:
            made[name] = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no PEM"
            failure = StateError(
                f"taskManager.cassandra.{setting}: cannot read {path}: {why}; correct the path"
            )
            failure.failure_kind = FailureKind.PERMANENT
            raise failure from None
    return made


def schema_statement(text: str, timeout_s: float) -> Untyped:
    """A statement that changes the schema, with the profile for that."""
    import acsylla

    statement = acsylla.create_statement(text, timeout=timeout_s)
    statement.set_execution_profile(_DDL_PROFILE)
    return statement


def local_statement(text: str) -> Untyped:
    """A statement that any one node answers, whatever the consistency of others is."""
    import acsylla

    return acsylla.create_statement(text, consistency=acsylla.Consistency.ONE)


def _consistency(name: str) -> Untyped:
    import acsylla

    return acsylla.Consistency[name]
