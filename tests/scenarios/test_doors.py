"""What anybody on the machine could do to a job over the ports of its processes, and what is refused now."""

import os
import stat

import grpc
import pytest

from weir.config import SecurityConfig
from weir.rpc import (
    common_pb2,
    control_pb2,
    control_pb2_grpc,
    data_pb2,
    data_pb2_grpc,
    state_pb2,
    state_pb2_grpc,
)
from weir.rpc.channels import connect
from weir.rpc.wire import PROTOCOL_VERSION
from weir.security.identity import identity_of
from weir.security.roles import Role

pytestmark = pytest.mark.scenario

EVENTS = 400_000


@pytest.fixture
def secret_file(tmp_path):
    return tmp_path / "security" / "secret"


def refused(call, request):
    with pytest.raises(grpc.RpcError) as refusal:
        call(request, timeout=10)
    return refusal.value.code(), refusal.value.details()


def open_channel(address, secret_file, role):
    if role is None:
        return grpc.insecure_channel(address)
    identity = identity_of(role, SecurityConfig(secret_file=str(secret_file)))
    return connect(address, Role.CLIENT, [], identity=identity)


def deploy_of(handshake):
    # What would be imported here prints a poem.
    return control_pb2.DeployRequest(handshake=handshake, job_module="this", parameters_json="{}")


def attacks(manager, plane, job, address):
    """Every call that changes something, as an attacker who has read ``/status`` makes it; name, call, request."""
    highest = common_pb2.Handshake(
        protocol_version=PROTOCOL_VERSION,
        job_id=job["job_id"],
        fingerprint=job["fingerprint"],
        generation=2**64 - 1,
    )
    now = common_pb2.Handshake()
    now.CopyFrom(highest)
    now.generation = job["generation"]
    calls = control_pb2_grpc.TaskManagerStub(manager)
    yield "foreign module", calls.Deploy, deploy_of(now)
    yield "highest generation", calls.Deploy, deploy_of(highest)
    yield "cancel", calls.Cancel, control_pb2.CancelRequest(job_id=job["job_id"], generation=2**64 - 1)
    yield (
        "end of a checkpoint",
        calls.EndCheckpoint,
        control_pb2.EndCheckpointRequest(handshake=now, checkpoint_id=2**62, committed=True),
    )
    planes = control_pb2_grpc.ControlPlaneStub(plane)
    register = control_pb2.RegisterRequest(
        protocol_version=PROTOCOL_VERSION, address=address, incarnation="forged", operator_quota=1
    )
    yield "register", planes.Register, register
    yield (
        "heartbeat",
        planes.Heartbeat,
        control_pb2.HeartbeatRequest(
            address=address,
            incarnation="forged",
            job_id=job["job_id"],
            generation=job["generation"],
            subtasks=[
                control_pb2.SubtaskReport(
                    subtask=common_pb2.SubtaskId(), state=control_pb2.SUBTASK_STATE_FAILED, cause="forged"
                )
            ],
        ),
    )
    yield "leave", planes.Deregister, control_pb2.DeregisterRequest(address=address, incarnation="forged")
    fence = state_pb2.StateFence(handshake=now, stage_index=1, key_groups=[1], owner_epochs=[2**63])
    yield (
        "fence",
        state_pb2_grpc.StateStub(manager).Get,
        state_pb2.StateGetRequest(fence=fence, keys=[b"\0\1"]),
    )
    yield (
        "rows",
        data_pb2_grpc.ExchangeStub(manager).OpenLink,
        data_pb2.OpenLinkRequest(protocol_version=PROTOCOL_VERSION),
    )


def test_a_job_goes_on_while_strangers_call_everything(make_cluster, tmp_path, write_events, secret_file):
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    settings = {"security.secret_file": str(secret_file)}
    cluster = make_cluster(settings=settings)
    plane = cluster.start_control_plane(
        "flow_faulty", {"input": events, "parallelism": 2, "rate": 2_000}, exit_when_finished=False
    )
    managers = [cluster.start_task_manager() for _ in range(2)]
    before = cluster.wait_for(
        lambda status: status["state"] == "RUNNING" and status["totals"]["events_out"] > 100, "rows"
    )
    address = before["task_managers"][0]["address"]
    # No proof; a role that may not; a second control plane of the same user.
    for role, code in (
        (None, grpc.StatusCode.UNAUTHENTICATED),
        (Role.CLIENT, grpc.StatusCode.PERMISSION_DENIED),
        (Role.CONTROL_PLANE, grpc.StatusCode.PERMISSION_DENIED),
    ):
        with (
            open_channel(address, secret_file, role) as manager,
            open_channel(f"127.0.0.1:{cluster.grpc_port}", secret_file, role) as control,
        ):
            for name, call, request in attacks(manager, control, before, address):
                assert refused(call, request)[0] is code, (role, name)
            if role is Role.CONTROL_PLANE:
                told = control_pb2_grpc.TaskManagerStub(manager).Status(
                    control_pb2.StatusRequest(), timeout=10
                )
                assert (told.question_greeting, told.frequent_calls_greeting) == (b"", b"")
    after = cluster.wait_for(
        lambda status: status["totals"]["events_out"] > before["totals"]["events_out"] + 1_000, "more rows"
    )
    same = ("state", "restarts", "generation")
    assert [after[key] for key in same] == [before[key] for key in same]
    assert {each["address"] for each in after["task_managers"]} == {
        each["address"] for each in before["task_managers"]
    }
    assert "refused /weir.v1.TaskManager/Deploy" in "".join(each.log_path.read_text() for each in managers)
    assert "refused /weir.v1.ControlPlane/Heartbeat" in plane.log_path.read_text()
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600


def test_a_task_manager_with_another_secret_is_refused_and_says_why(make_cluster, tmp_path, secret_file):
    (tmp_path / "empty.jsonl").touch()
    cluster = make_cluster(settings={"security.secret_file": str(secret_file)}, task_managers=1)
    plane = cluster.start_control_plane(
        "flow_faulty", {"input": tmp_path / "empty.jsonl"}, exit_when_finished=False
    )
    plane.wait_for_text("register at")
    stranger = cluster.start(
        "stranger",
        "task_manager",
        ["--control-plane", f"127.0.0.1:{cluster.grpc_port}", "--port", "0"],
        {"security.secret_file": str(tmp_path / "other")},
    )
    assert stranger.wait() == 1
    assert "security.secret_file" in stranger.log_tail(1)
    assert cluster.status()["task_managers"] == []


def test_beyond_the_machine_nothing_starts_without_certificates(make_cluster, tmp_path):
    cluster = make_cluster()
    host = {"taskManager.host": "0.0.0.0", "taskManager.advertised_host": "127.0.0.1"}
    process = cluster.start("open", "task_manager", [], host)
    assert process.wait() == 2
    assert "weir security init" in process.log_tail(1)
    assert "--insecure" in process.log_tail(1)


def test_what_a_job_keeps_is_for_its_owner_only(make_cluster, tmp_path, write_events, secret_file):
    events = write_events(tmp_path / "events.jsonl", 2_000)
    kept = tmp_path / "kept"
    before = os.umask(0o022)
    try:
        cluster = make_cluster(
            settings={
                "security.secret_file": str(secret_file),
                "controlPlane.checkpoint_uri": str(kept / "checkpoints"),
                "controlPlane.state_path": str(kept / "record" / "control_plane.json"),
                "taskManager.rocksDBPath": str(kept / "state" / "1.db"),
            },
            task_managers=1,
        )
        cluster.start_control_plane("flow_faulty", {"input": events}, exit_when_finished=False)
        cluster.start_task_manager()
        cluster.wait_for(lambda status: status["state"] == "FINISHED", "the end")
    finally:
        os.umask(before)
    found = [each for each in (*kept.iterdir(), kept)]
    assert {each.name for each in found} >= {"checkpoints", "record"}
    for each in found:
        assert stat.S_IMODE(each.stat().st_mode) & 0o077 == 0, each
    assert stat.S_IMODE((kept / "record" / "control_plane.json").stat().st_mode) == 0o600
