"""Encrypted connections with a real Cassandra, and what is said of certificates that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.secure_listener import write_certificate
from tests.weir.state.database_backend import node_settings
from weir.config.stores import CassandraConfig
from weir.errors import FailureKind, StateError
from weir.state.cassandra.client import make_client
from weir.state.cassandra.session import leave_session, open_session


@pytest.mark.service
def test_connections_are_encrypted_where_an_authority_is_named(cassandra_node: Any) -> None:
    session = open_session(node_settings(cassandra_node.port, tls_ca_file=str(cassandra_node.certificate)))

    async def used() -> bool:
        rows = await session.read_schema("SELECT username, ssl_enabled FROM system_views.clients")
        return any(row.ssl_enabled for row in rows)

    try:
        assert session.run(used())
    finally:
        leave_session(session)


@pytest.mark.service
def test_a_certificate_of_another_authority_is_told_and_not_waited_for(
    cassandra_node: Any, tmp_path: Path
) -> None:
    other, _ = write_certificate(tmp_path / "other")
    with pytest.raises(StateError, match=r"certificate.*correct taskManager\.cassandra\.tls_ca_file") as told:
        open_session(node_settings(cassandra_node.port, tls_ca_file=str(other)))
    assert told.value.failure_kind is FailureKind.PERMANENT


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone.pem"
    with pytest.raises(
        StateError, match=rf"cassandra\.tls_ca_file: cannot read {gone}: No such file.*; correct"
    ) as told:
        make_client(CassandraConfig(tls_ca_file=str(gone)))
    assert told.value.failure_kind is FailureKind.PERMANENT
