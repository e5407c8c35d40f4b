"""Messages that are written and read by hand are those of protobuf."""

import pytest

from weir.errors import HandshakeError
from weir.rpc import log_pb2
from weir.rpc.log_wire import produce_request, split_blob, with_blob


@pytest.mark.parametrize("size", [1, 127, 128, 300_000])
def test_a_batch_is_written_as_protobuf_does_it(size):
    message = log_pb2.ProduceRequest(batch_crc=0x89ABCDEF, batch=b"h" + b"b" * size)
    assert produce_request(0x89ABCDEF, b"h", b"b" * size) == message.SerializeToString()


def test_entries_are_split_off_whatever_is_around_them():
    request = log_pb2.ReplicateRequest(
        commit_offset=1 << 40, has_cut=True, cut_offset=300, start_offset=7, snapshot=b"\x7a" * 200
    )
    head = request.SerializeToString()
    assert split_blob(head) == (head, b"")
    whole = with_blob(head, [b"ab", b"c" * 500])
    assert split_blob(whole) == (head, b"ab" + b"c" * 500)
    request.entries = b"ab" + b"c" * 500
    assert log_pb2.ReplicateRequest.FromString(whole) == request


@pytest.mark.parametrize(
    "message",
    [b"\x7a", b"\x7a\x05abc", b"\x7a\x01abc", b"\x0b", b"\x0a\x05abc", b"\xff", b"\xff" * (1 << 20)],
)
def test_other_bytes_are_refused(message):
    with pytest.raises(HandshakeError, match="another form"):
        split_blob(message)
