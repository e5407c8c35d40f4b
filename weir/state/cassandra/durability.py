"""Tells a user whose database may forget what it has acknowledged: nobody else has those changes any more."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from weir.errors import StateError
from weir.state.cassandra.session import Session

log = logging.getLogger(__name__)

_SYNC = "commitlog_sync"
_SYNC_QUERY = f"SELECT value FROM system_views.settings WHERE name = '{_SYNC}'"
_CLASS = "class"


async def warn_of_lost_writes(session: Session) -> None:
    """Log a warning if the death of one node may lose acknowledged writes; called once for each start of a job.

    A node that does not tell its settings (of a database without ``system_views``, or to this user) is left alone.
    """
    settings = session.settings
    query = f"SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{settings.keyspace}'"
    try:
        kept = (await session.read_schema(query)).first()
        sync = (await session.read_schema(_SYNC_QUERY)).first()
    except StateError as error:
        log.debug("how Cassandra at %s keeps its writes is not known: %s", settings.address, error)
        return
    if kept is not None and sync is not None and may_lose_writes(sync.value or "", kept.replication or {}):
        log.warning(
            "Cassandra at %s has each row of keyspace %s on one node, with %s %s: rows that it has acknowledged are "
            "lost if the node dies, and states are wrong then; set %s to batch in its cassandra.yaml, or replicate the "
            "keyspace to three nodes",
            settings.address,
            settings.keyspace,
            _SYNC,
            sync.value,
            _SYNC,
        )


def may_lose_writes(commitlog_sync: str, replication: Mapping[str, str]) -> bool:
    """Return whether the death of one node may lose what was acknowledged.

    Args:
        commitlog_sync: when a node has its commit log on the disk, as ``cassandra.yaml`` names it.
        replication: of the keyspace, as the database tells it: its class, and how many nodes have a row, in all or by
            data centre.
    """
    replicas = [count for name, count in replication.items() if name != _CLASS]
    return commitlog_sync == "periodic" and replicas == ["1"]
