"""Processes with certificates: who has none, or one of another authority, role or time, changes nothing."""

import datetime as dt
import http.client
import json
import os
import re
import ssl
import subprocess
import sys

import grpc
import pytest

from experiments.ports import free_port
from weir.clock import SystemClock
from weir.config import SecurityConfig
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.channels import connect
from weir.rpc.wire import PROTOCOL_VERSION
from weir.security.certificates import initialise, now, renew
from weir.security.identity import Identity, identity_of
from weir.security.roles import Role
from weir.security.tls_files import TlsFiles

pytestmark = pytest.mark.scenario

EVENTS = 400_000


@pytest.fixture
def directory(tmp_path):
    initialise(tmp_path / "security", [], 30, now())
    return tmp_path / "security"


@pytest.fixture
def cluster(make_cluster, tmp_path, write_events, directory):
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    settings = {"security.directory": str(directory), "security.audit_file": str(tmp_path / "audit.jsonl")}
    # Rows go over TCP, as between machines.
    made = make_cluster(settings={**settings, "taskManager.unix_sockets": "false"})
    made.start_control_plane(
        "flow_faulty", {"input": events, "parallelism": 2, "rate": 2_000}, exit_when_finished=False
    )
    for _ in range(2):
        made.start_task_manager()
    made.wait_for(
        lambda status: status["state"] == "RUNNING" and status["totals"]["events_out"] > 100, "rows"
    )
    return made


def of_directory(directory, role=Role.TASK_MANAGER):
    return Identity(role, tls=TlsFiles(directory, role, SystemClock()))


def registers(address, identity):
    """What a process is told that registers; None: it gets no connection."""
    channel = (
        grpc.insecure_channel(address)
        if identity is None
        else connect(address, Role.CONTROL_PLANE, [], identity=identity)
    )
    request = control_pb2.RegisterRequest(
        protocol_version=PROTOCOL_VERSION, address="127.0.0.1:1", incarnation="x", operator_quota=1
    )
    with channel:
        try:
            control_pb2_grpc.ControlPlaneStub(channel).Register(request, timeout=5)
        except grpc.RpcError as error:
            return error.code()
    raise AssertionError("it was taken")


def test_processes_without_the_right_certificate_are_refused(cluster, directory, tmp_path):
    before = cluster.status()
    place = f"127.0.0.1:{cluster.grpc_port}"
    others, expired = tmp_path / "others", tmp_path / "expired"
    initialise(others, [], 30, now())
    initialise(expired, [], 30, now())
    for name in ("ca.pem", "ca.key"):
        (expired / name).write_bytes((directory / name).read_bytes())
    renew(expired, [], 1, now() - dt.timedelta(days=3))
    no_connection = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert registers(place, None) in no_connection
    assert registers(place, of_directory(others)) in no_connection
    assert registers(place, of_directory(expired)) in no_connection
    secret = identity_of(Role.TASK_MANAGER, SecurityConfig(secret_file=str(tmp_path / "secret")))
    assert registers(place, secret) in no_connection
    for role in (Role.CLIENT, Role.LOG_BROKER, Role.CONTROL_PLANE):
        assert registers(place, of_directory(directory, role)) is grpc.StatusCode.PERMISSION_DENIED
    # One that may: nothing listens where it says that it is.
    assert registers(place, of_directory(directory)) is grpc.StatusCode.UNAVAILABLE
    # A second control plane with a right certificate: it gives no orders.
    address = before["task_managers"][0]["address"]
    plane = of_directory(directory, Role.CONTROL_PLANE)
    with (
        connect(address, Role.TASK_MANAGER, [], identity=plane) as channel,
        pytest.raises(grpc.RpcError) as error,
    ):
        control_pb2_grpc.TaskManagerStub(channel).Deploy(control_pb2.DeployRequest(), timeout=10)
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
    after = cluster.wait_for(
        lambda status: status["totals"]["events_out"] > before["totals"]["events_out"] + 1_000, "more rows"
    )
    assert (after["state"], after["restarts"]) == ("RUNNING", 0)
    process = cluster.processes["control_plane"]
    process.wait_for_text("refused /weir.v1.ControlPlane/Register")
    process.wait_for_text(f"to {place}: no certificate, one of another authority, or one that has expired")


def ask(cluster, directory, method, path, token=None, **headers):
    context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", cluster.http_port, timeout=30, context=context)
    if token:
        headers["Authorization"] = f"Bearer {(directory / f'{token}.token').read_text().strip()}"
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, dict(reply.headers), reply.read()
    finally:
        connection.close()


def test_tokens_and_renewal(cluster, directory, tmp_path, monkeypatch):
    assert ask(cluster, directory, "GET", "/healthz")[0] == 200
    assert ask(cluster, directory, "GET", "/status")[0] == 401
    assert ask(cluster, directory, "GET", "/status", Authorization="Bearer no")[0] == 401
    status, headers, _ = ask(cluster, directory, "GET", "/", Accept="text/html")
    assert (status, headers["location"]) == (303, "/login")
    status, headers, page = ask(cluster, directory, "GET", "/login")
    assert status == 200
    assert b"password" in page
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert ask(cluster, directory, "GET", "/status", "look")[0] == 200
    assert ask(cluster, directory, "POST", "/checkpoints", "look")[0] == 403
    assert ask(cluster, directory, "GET", "/scale?stage=1&parallelism=1", "look")[0] == 403
    assert ask(cluster, directory, "POST", "/checkpoints", "operate")[0] == 202
    # Behind these pages are calls of a task manager.
    address = cluster.status()["task_managers"][0]["address"]
    status, _, log = ask(cluster, directory, "GET", f"/logs?task_manager={address}", "look")
    assert status == 200
    assert b"registered at the control plane" in log
    # Who did what, and from where, is for those who may operate.
    seen = {name: ask(cluster, directory, "GET", "/logs", name)[2] for name in ("look", "operate")}
    assert b"token operate at 127.0.0.1" in seen["operate"]
    assert b"token look at 127.0.0.1" in seen["operate"]
    assert b"token " not in seen["look"]
    assert b"control_plane INFO" in seen["look"]
    assert ask(cluster, directory, "POST", "/profile?stage=0&seconds=0.3", "look")[0] == 403
    assert ask(cluster, directory, "POST", "/profile?stage=0&seconds=0.3", "operate")[0] == 202
    cluster.wait_for(lambda _: cluster.http("GET", "/profile")[1]["state"] == "DONE", "a profile")
    token = (directory / "look.token").read_text().strip()
    assert ask(cluster, directory, "GET", "/status", Cookie=f"weir_token={token}")[0] == 200
    assert ask(cluster, directory, "POST", "/checkpoints", "operate", Origin="https://evil.example")[0] == 403
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    told = [(each["who"], each["target"], each["status"]) for each in entries]
    assert ("token look", "/checkpoints", 403) in told
    assert ("token operate", "/checkpoints", 202) in told
    # A program of a user, by its environment.
    monkeypatch.setenv("WEIR_SECURITY_DIRECTORY", str(directory))
    import weir

    manager = cluster.status()["task_managers"][0]["http"]
    for place in (f"localhost:{cluster.http_port}", manager):
        with weir.connect(place) as connection:
            assert connection.states() is not None
    # New certificates, of which a new task manager is one that the old processes take.
    before = cluster.status()
    renew(directory, [], 30, now())
    cluster.start_task_manager()
    after = cluster.wait_for(lambda status: len(status["task_managers"]) == 3, "a third task manager")
    assert (after["state"], after["restarts"], after["generation"]) == ("RUNNING", 0, before["generation"])
    cluster.wait_for(
        lambda status: status["totals"]["events_out"] > after["totals"]["events_out"] + 1_000, "more rows"
    )
    wanted = (directory / "control-plane.pem").read_text().strip()
    cluster.wait_for(
        lambda _: ssl.get_server_certificate(("127.0.0.1", cluster.http_port)).strip() == wanted,
        "the new certificate over HTTP",
    )


def test_the_log_takes_its_own_and_clients_with_certificates(tmp_path, directory, monkeypatch):
    """Producers, readers and brokers with certificates; those without get no connection, and nothing ends."""
    port = free_port()
    processes = []
    flags = ["--security-dir", str(directory)]
    parts = [
        ["--controller-only", "--port", str(port), "--http-port", "0", "--dir", str(tmp_path / "c")],
        ["--id", "1", "--port", "0", "--controller", f"127.0.0.1:{port}", "--dir", str(tmp_path / "b")],
    ]
    try:
        for index, part in enumerate(parts):
            with open(tmp_path / f"{index}.log", "wb") as log:
                command = [sys.executable, "-m", "log_broker", *part, *flags]
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        told = ""
        while not (found := re.search(r"listening on (\S+)", told)):
            assert processes[1].poll() is None, told
            told = (tmp_path / "1.log").read_text()
        program = (
            "import sys, weir.log\n"
            "brokers = sys.argv[1]\n"
            "weir.log.create_topic(brokers, 't', replication=1)\n"
            "with weir.log.Producer(brokers, topic='t') as producer:\n"
            "    producer.send(7, b'row')\n"
            "print([record.id for record in weir.log.Reader(brokers, topic='t')])\n"
        )
        environment = {**os.environ, "WEIR_SECURITY_DIRECTORY": str(directory)}
        command = [sys.executable, "-c", program, found[1]]
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
        assert ended.stdout == b"[7]\n", ended.stderr.decode()
        environment["WEIR_SECURITY_DIRECTORY"] = ""
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
        assert ended.returncode == 1, ended.stdout
        assert all(process.poll() is None for process in processes)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
