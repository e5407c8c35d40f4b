"""What a frame holds that makes a call, and its answer: bytes that processes of different ages must agree on."""

import pytest

from weir.rpc import control_pb2
from weir.rpc.frequent_calls import FrequentCall, answer_to, call_frame, reply_from


def test_the_bytes_of_a_call_and_its_answer():
    request = control_pb2.HeartbeatRequest(address="a:1", generation=3)
    frame = call_frame(FrequentCall.HEARTBEAT, request)
    assert frame == b"\x01\n\x03a:1 \x03"
    came = []

    def take(content):
        came.append(control_pb2.HeartbeatRequest.FromString(content))
        return control_pb2.HeartbeatReply(known=True)

    answer = answer_to(frame, {FrequentCall.HEARTBEAT: take})
    assert came == [request]
    assert answer == b"\x01\x08\x01"
    assert reply_from(control_pb2.HeartbeatReply, answer) == control_pb2.HeartbeatReply(known=True)
    assert [int(call) for call in FrequentCall] == [1, 2, 3, 4]


def test_an_empty_reply_is_one():
    reply = control_pb2.TriggerCheckpointReply()
    answer = answer_to(b"\x03", {FrequentCall.TRIGGER_CHECKPOINT: lambda content: reply})
    assert reply_from(control_pb2.TriggerCheckpointReply, answer) == reply


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\x02a", b"\xff", b"\x01\xff\xff"])
def test_what_is_none_of_ours_is_refused(frame):
    answer = answer_to(frame, {FrequentCall.HEARTBEAT: control_pb2.HeartbeatRequest.FromString})
    assert reply_from(control_pb2.HeartbeatReply, answer) is None
