"""Roles of processes, and which of them may make which call of gRPC. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

#: What stands behind a role in the DNS name that its certificate has; nothing resolves it.
ROLE_DOMAIN = ".weir.internal"


class Role(StrEnum):
    """What a process is; the value is the name of its certificate's files."""

    CONTROL_PLANE = "control-plane"
    TASK_MANAGER = "task-manager"
    LOG_BROKER = "log-broker"
    #: Producers and readers of the log, and the commands of people.
    CLIENT = "client"

    @property
    def server_name(self) -> str:
        """The DNS name in the certificate; who connects demands that of the role that it looks for."""
        return f"{self}{ROLE_DOMAIN}"


def role_of_names(names: Iterable[str]) -> Role | None:
    """The role that the names of a certificate tell; None: none, or several."""
    found = {Role(name.removesuffix(ROLE_DOMAIN)) for name in names if name in _SERVER_NAMES}
    return found.pop() if len(found) == 1 else None


_SERVER_NAMES = frozenset(role.server_name for role in Role)

_BY_TASK_MANAGERS = frozenset({Role.TASK_MANAGER})
_BY_CONTROL_PLANES = frozenset({Role.CONTROL_PLANE})
_BY_BROKERS = frozenset({Role.LOG_BROKER})
_BY_ANY = frozenset(Role)
#: Calls of a task manager that others than its control plane make.
_OF_PEERS = frozenset({"HandOver", "TakeCopy", "TakeImage", "CollectImage"})
#: Calls that only tell who a task manager is.
_WITHOUT_ORDERS = frozenset({"Status"})
_CONTROL_PLANE, _TASK_MANAGER = "weir.v1.ControlPlane", "weir.v1.TaskManager"
_OF_SERVICES = {
    _CONTROL_PLANE: _BY_TASK_MANAGERS,
    "weir.v1.Exchange": _BY_TASK_MANAGERS,
    "weir.v1.State": _BY_TASK_MANAGERS,
    "weir.log.v1.LogBroker": _BY_ANY,
    "weir.log.v1.LogController": _BY_BROKERS,
}
_OF_CALLS = {"/weir.log.v1.LogBroker/Replicate": _BY_BROKERS}


def callers(method: str) -> frozenset[Role]:
    """Roles that may make a call; ``method`` is ``/package.Service/Method``. Nobody may make one that is not known."""
    if method in _OF_CALLS:
        return _OF_CALLS[method]
    service, _, name = method.lstrip("/").partition("/")
    if service == _TASK_MANAGER:
        return _BY_TASK_MANAGERS if name in _OF_PEERS else _BY_CONTROL_PLANES
    return _OF_SERVICES.get(service, frozenset())


def takes_orders(method: str) -> bool:
    """Return whether a call of a task manager is an order, for which its own control plane alone has the secret."""
    service, _, name = method.lstrip("/").partition("/")
    return service == _TASK_MANAGER and name not in _OF_PEERS | _WITHOUT_ORDERS
