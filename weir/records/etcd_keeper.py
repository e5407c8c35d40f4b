"""Keeps a record in etcd, and lets several processes elect the one that leads.

Keys, below ``/weir/<job name>/`` for a control plane and ``/weir-log/<name>/`` for the controller of a log::

    leader   random id of the leading process, bound to its lease: it goes when the process does
    record   the document
    ...      documents beside it, such as history

A record is written in a transaction that compares the leader, so one that has lost its lease changes nothing.
Reached through etcd's JSON gateway (etcd 3.4 and later).
"""

from __future__ import annotations

import base64
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import requests
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception
from etcd3gw.lease import Lease

from weir.errors import CheckpointError, SupersededError
from weir.redaction import redacted_text
from weir.rpc.wire import parse_address

log = logging.getLogger("weir.records")

#: The leader's lease; it is renewed three times as often.
LEASE_S = 3
_TIMEOUT_S = 2.0
_LOOK_S = 0.2
_FAILURES = (Etcd3Exception, requests.RequestException, KeyError, ValueError)


class EtcdKeeper:
    """Implements ``keeper.Keeper``; methods block, and :meth:`close` may come from another thread."""

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        on_lost: Callable[[], None],
        *,
        owner: str = "control plane",
        setting: str = "controlPlane.etcd_endpoints",
    ) -> None:
        """Ask nobody yet.

        Args:
            endpoints: of etcd.
            prefix: of the keys, without a slash at its end.
            on_lost: called once, in a thread of its own, when another process may lead.
            owner: what the processes are whose record it is, for messages.
            setting: what names the endpoints, for messages.

        Raises:
            HandshakeError: an endpoint is neither ``host:port`` nor ``http://host:port``.
        """
        self._clients = []
        for endpoint in endpoints:
            protocol, separator, rest = endpoint.partition("://")
            address = parse_address(rest if separator else endpoint)
            self._clients.append(
                Etcd3Client(
                    address.host,
                    address.port,
                    protocol if separator else "http",
                    timeout=_TIMEOUT_S,
                    api_path="/v3/",
                )
            )
        self._endpoints = redacted_text(", ".join(endpoints))
        self._prefix = prefix
        self._leader_key, self._record_key = (f"{prefix}/{name}" for name in ("leader", "record"))
        self._owner = owner
        self._setting = setting
        self._id = secrets.token_hex(8)
        self._on_lost = on_lost
        self._lease_id: int | None = None
        self._closed = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="etcd lease", daemon=True)

    @property
    def place(self) -> str:
        """The key; see ``keeper.Keeper``."""
        return f"the record {self._record_key} in etcd"

    @property
    def is_shared(self) -> bool:
        """A lease can end while the process is paused; see ``keeper.Keeper``."""
        return True

    def lead(self) -> None:
        """Wait until no other process leads; see ``keeper.Keeper``.

        Raises:
            CheckpointError: no endpoint answers.
        """
        told = False
        while not self._closed.is_set():
            if self._lease_id is None:
                self._lease_id = self._do(lambda client: client.lease(LEASE_S).id)
            lease_id = self._lease_id
            if self._do(partial(self._claim, lease_id=lease_id)):
                self._renewer.start()
                return
            if not told:
                told = True
                log.info("another %s leads; waiting until it is gone", self._owner)
            if self._do(_refresh(lease_id)) <= 0:
                self._lease_id = None
            self._closed.wait(_LOOK_S)

    def load(self) -> bytes | None:
        """The record; see ``keeper.Keeper``."""
        return self._load(self._record_key)

    def load_beside(self, name: str) -> bytes | None:
        """Another document; see ``keeper.Keeper``."""
        return self._load(f"{self._prefix}/{name}")

    def _load(self, key: str) -> bytes | None:
        found: list[bytes] = self._do(lambda client: client.get(key))
        return found[0] if found else None

    def save(self, data: bytes) -> None:
        """Replace the record, as long as this process leads; see ``keeper.Keeper``."""
        self._save(self._record_key, data)

    def save_beside(self, name: str, data: bytes) -> None:
        """Replace another document, as long as this process leads; see ``keeper.Keeper``."""
        self._save(f"{self._prefix}/{name}", data)

    def _save(self, key: str, data: bytes) -> None:
        put = {"request_put": {"key": _text(key), "value": _text(data)}}
        compare = {
            "key": _text(self._leader_key),
            "target": "VALUE",
            "result": "EQUAL",
            "value": _text(self._id),
        }
        answer = self._do(
            lambda client: client.transaction({"compare": [compare], "success": [put], "failure": []})
        )
        if not answer.get("succeeded"):
            raise SupersededError(
                f"the record in etcd ({self._endpoints}) was not written: another {self._owner} leads"
            )

    def close(self) -> None:
        """Give up the leadership; see ``keeper.Keeper``."""
        self._closed.set()
        if self._lease_id is not None:
            lease_id, self._lease_id = self._lease_id, None
            try:
                self._do(lambda client: Lease(lease_id, client).revoke())
            except CheckpointError as error:
                log.debug("the lease runs out by itself: %s", error)

    def _claim(self, client: Etcd3Client, lease_id: int) -> bool:
        """Create the leader's key, unless an earlier call has whose answer was lost; False: another process has it."""
        compare = {
            "key": _text(self._leader_key),
            "target": "CREATE",
            "result": "EQUAL",
            "create_revision": 0,
        }
        put = {"request_put": {"key": _text(self._leader_key), "value": _text(self._id), "lease": lease_id}}
        ask = {"request_range": {"key": _text(self._leader_key)}}
        answer = client.transaction({"compare": [compare], "success": [put], "failure": [ask]})
        if answer.get("succeeded"):
            return True
        found = answer["responses"][0]["response_range"].get("kvs", ())
        return any(each["value"] == _text(self._id) for each in found)

    def _renew(self) -> None:
        left_s = float(LEASE_S)
        while not self._closed.wait(LEASE_S / 3):
            lease_id = self._lease_id
            if lease_id is None:
                return
            try:
                renewed_s = self._do(_refresh(lease_id))
            except CheckpointError as error:
                log.warning("%s", error)
                left_s -= LEASE_S / 3
            else:
                left_s = float(renewed_s)
            if left_s <= 0 and not self._closed.is_set():
                self._on_lost()
                return

    def _do(self, work: Callable[[Etcd3Client], Any]) -> Any:
        """Ask the endpoints in turn until one answers."""
        failure: Exception | None = None
        for client in list(self._clients):
            try:
                return work(client)
            except _FAILURES as error:
                failure = error
                # The next call begins with another one.
                self._clients.append(self._clients.pop(0))
        raise CheckpointError(
            f"no etcd endpoint answers ({self._endpoints}): {type(failure).__name__}; check {self._setting}"
        ) from failure


def _refresh(lease_id: int) -> Callable[[Etcd3Client], int]:
    """Renews a lease; returns its seconds, -1 if it has run out."""
    return lambda client: Lease(lease_id, client).refresh()


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
