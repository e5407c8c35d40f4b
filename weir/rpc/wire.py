"""Between dataclasses and protobuf messages, and the limits of the wire. Used by both processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weir.config import StateMove, StateStrategy
from weir.errors import FailureKind, HandshakeError
from weir.redaction import redacted_text
from weir.rpc import common_pb2, control_pb2
from weir.types import Address, ChannelId, SubtaskId, is_host

#: Grows with every incompatible change of a .proto file; both sides must have the same.
PROTOCOL_VERSION = 6
#: Limit of one control message: routing tables of large jobs fit many times over.
CONTROL_MESSAGE_BYTES_MAX = 16 << 20
#: What a message adds to the Arrow or state bytes inside it, generously.
MESSAGE_OVERHEAD_BYTES_MAX = 64 << 10
#: A job restarted each ms for 30 years has fewer; a higher one would fence all that come.
GENERATION_MAX = 1 << 40
#: The number of a key group is two bytes of a key.
GROUP_MAX = 0xFFFF
_PORT_DIGITS_MAX = 5


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """What both ends of a stream must agree on."""

    job_id: str
    fingerprint: str
    generation: int


def message_size_options(bytes_max: int) -> list[tuple[str, int]]:
    """The gRPC options that bound one message in both directions."""
    limit = bytes_max + MESSAGE_OVERHEAD_BYTES_MAX
    return [("grpc.max_send_message_length", limit), ("grpc.max_receive_message_length", limit)]


def handshake_to_proto(identity: JobIdentity) -> common_pb2.Handshake:
    """The first message of a stream, or the first field of a request."""
    return common_pb2.Handshake(
        protocol_version=PROTOCOL_VERSION,
        job_id=identity.job_id,
        fingerprint=identity.fingerprint,
        generation=identity.generation,
    )


def handshake_from_proto(message: common_pb2.Handshake) -> JobIdentity:
    """Read a handshake.

    Raises:
        HandshakeError: the other side speaks another protocol version.
    """
    check_protocol_version(message.protocol_version)
    if message.generation > GENERATION_MAX:
        raise HandshakeError(
            f"deployment {message.generation} of job {message.job_id[:200]!r} cannot be: there are "
            f"{GENERATION_MAX} at most"
        )
    return JobIdentity(message.job_id, message.fingerprint, message.generation)


def check_protocol_version(version: int) -> None:
    """Compare the other side's protocol version with ours.

    Raises:
        HandshakeError: they differ.
    """
    if version != PROTOCOL_VERSION:
        raise HandshakeError(
            f"protocol version {version} does not match ours, {PROTOCOL_VERSION}: run the same Weir version everywhere"
        )


def check_same_job(ours: JobIdentity, theirs: JobIdentity) -> None:
    """Compare two identities.

    Raises:
        HandshakeError: another job, another graph or another deployment; says which.
    """
    if ours.job_id != theirs.job_id:
        raise HandshakeError(f"job {theirs.job_id} does not run here; {ours.job_id} does")
    if ours.fingerprint != theirs.fingerprint:
        raise HandshakeError(
            f"job {ours.job_id}: the graphs differ (fingerprint {theirs.fingerprint} there, {ours.fingerprint} here): "
            "start both processes from the same code and parameters"
        )
    if ours.generation != theirs.generation:
        raise HandshakeError(
            f"job {ours.job_id}: deployment {theirs.generation} does not match the current one, {ours.generation}"
        )


def subtask_to_proto(subtask: SubtaskId) -> common_pb2.SubtaskId:
    """To the wire."""
    return common_pb2.SubtaskId(stage_index=subtask.stage_index, subtask_index=subtask.subtask_index)


def subtask_from_proto(message: common_pb2.SubtaskId) -> SubtaskId:
    """From the wire."""
    return SubtaskId(message.stage_index, message.subtask_index)


def channel_to_proto(channel: ChannelId) -> common_pb2.ChannelId:
    """To the wire."""
    return common_pb2.ChannelId(
        producer=subtask_to_proto(channel.producer),
        consumer=subtask_to_proto(channel.consumer),
        edge_index=channel.edge_index,
    )


def channel_from_proto(message: common_pb2.ChannelId) -> ChannelId:
    """From the wire."""
    return ChannelId(
        subtask_from_proto(message.producer), subtask_from_proto(message.consumer), message.edge_index
    )


def parse_address(text: str) -> Address:
    """Read ``host:port``.

    Raises:
        HandshakeError: the text has another form: a path, a scheme (``unix:``), an IPv6 address without brackets.
    """
    host, separator, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (
        not separator
        or not is_host(host)
        or (":" in host) != is_bracketed
        or not (port.isascii() and port.isdecimal() and len(port) <= _PORT_DIGITS_MAX)
        or not 0 < int(port) < 65536
    ):
        raise HandshakeError(f"{redacted_text(text)!r} is not an address of the form host:port")
    return Address(host, int(port))


_FAILURE_KINDS = {
    FailureKind.OUTAGE: control_pb2.FAILURE_KIND_OUTAGE,
    FailureKind.ROWS: control_pb2.FAILURE_KIND_ROWS,
    FailureKind.PERMANENT: control_pb2.FAILURE_KIND_PERMANENT,
    FailureKind.OTHER: control_pb2.FAILURE_KIND_OTHER,
}
_FAILURE_KINDS_BACK: dict[int, FailureKind] = {number: kind for kind, number in _FAILURE_KINDS.items()}


def failure_kind_to_proto(kind: FailureKind) -> control_pb2.FailureKind:
    """As a field of a report."""
    return _FAILURE_KINDS[kind]


def failure_kind_from_proto(kind: int) -> FailureKind:
    """Read a field of a report; what is not known is OTHER."""
    return _FAILURE_KINDS_BACK.get(kind, FailureKind.OTHER)


_STATE_MOVES = {
    StateMove.SHIPPED: control_pb2.STATE_MOVE_SHIPPED,
    StateMove.LEFT: control_pb2.STATE_MOVE_LEFT,
    StateMove.FETCHED: control_pb2.STATE_MOVE_FETCHED,
}
_STATE_MOVES_BACK: dict[int, StateMove] = {number: move for move, number in _STATE_MOVES.items()}


def strategy_to_proto(strategy: StateStrategy) -> control_pb2.StateStrategy:
    """As a field of a Deploy."""
    return control_pb2.StateStrategy(
        move=_STATE_MOVES[strategy.move],
        asks_for_places=strategy.asks_for_places,
        relinks=strategy.relinks,
    )


def strategy_from_proto(message: control_pb2.StateStrategy) -> StateStrategy:
    """Read a field of a Deploy.

    Raises:
        HandshakeError: it says nothing, or something unknown.
    """
    move = _STATE_MOVES_BACK.get(message.move)
    if move is None:
        raise HandshakeError(
            f"the control plane moves state in a way that is not known here ({message.move}): "
            "run the same Weir version everywhere"
        )
    return StateStrategy(move, message.asks_for_places, message.relinks)


#: Key of the trailing metadata in which a call that is refused says what its failure means for the next attempt.
_KIND_KEY = "weir-failure-kind"


def refusal_metadata(kind: FailureKind) -> tuple[tuple[str, str], ...]:
    """For ``context.set_trailing_metadata`` before ``context.abort``."""
    return ((_KIND_KEY, kind.value),)


def refusal_kind(metadata: Iterable[Any] | None) -> FailureKind:
    """What :func:`refusal_metadata` says in the trailing metadata of a refused call; OTHER if it says nothing."""
    said = {value for key, value in metadata or () if key == _KIND_KEY}
    return next((kind for kind in FailureKind if kind.value in said), FailureKind.OTHER)
