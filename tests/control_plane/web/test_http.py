"""The control plane alone, as a real process that waits for task managers: every page, and cancelling."""

import http.client
import json
import re
import urllib.request

import grpc
import pytest

from experiments.cluster import Cluster
from weir.config import SecurityConfig
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.channels import connect
from weir.rpc.wire import PROTOCOL_VERSION
from weir.security.identity import identity_of
from weir.security.roles import Role

pytestmark = pytest.mark.scenario

PAGES = ["/healthz", "/metrics", "/plan", "/routing", "/status"]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory, forks):
    """A cluster without task managers."""
    with Cluster(tmp_path_factory.mktemp("http"), task_managers=2, popen=forks.popen) as cluster:
        cluster.start_control_plane(
            "jobs.server_count", {"input": "nowhere", "parallelism": 3}, exit_when_finished=False
        )
        cluster.wait_for(lambda status: True, "the first status")
        yield cluster


def get(cluster, path):
    url = f"http://127.0.0.1:{cluster.http_port}{path}"
    with urllib.request.urlopen(url, timeout=60) as reply:
        return reply.status, reply.headers.get_content_type(), reply.read().decode()


def test_status_says_what_the_job_waits_for(waiting):
    status = waiting.status()
    assert status["state"] == "WAITING_FOR_TASK_MANAGERS"
    assert "2 task managers" in status["waiting_for"]
    assert status["cause"] == ""
    assert status["job_module"] == "jobs.server_count"
    assert status["parameters"]["parallelism"] == 3
    assert [stage["parallelism"] for stage in status["stages"]] == [1, 3, 3, 3, 3]
    assert {subtask["state"] for stage in status["stages"] for subtask in stage["subtasks"]} == {"WAITING"}
    assert status["totals"]["events_in"] == 0
    assert status["totals"]["first_event_ms"] is None


def test_plan_has_operators_stages_and_exchanges(waiting):
    code, plan = waiting.http("GET", "/plan")
    assert code == 200
    assert [operator["name"] for operator in plan["operators"]] == ["events", "keep", "load", "count", "out"]
    assert [edge["exchange"] for edge in plan["edges"]] == ["round_robin", "hash", "hash", "round_robin"]
    assert plan["edges"][1]["key_columns"] == ["server_name"]
    assert plan["fingerprint"] == waiting.status()["fingerprint"]


def test_routing_gives_each_key_group_one_subtask(waiting):
    code, tables = waiting.http("GET", "/routing")
    assert code == 200
    assert [table["stage"] for table in tables] == [2, 3]
    for table in tables:
        assert len(table["group_to_subtask"]) == 128
        assert set(table["group_to_subtask"]) == {0, 1, 2}
        assert sum(table["groups_per_subtask"]) == 128
        assert max(table["groups_per_subtask"]) - min(table["groups_per_subtask"]) <= 1


def test_a_page_that_is_asked_in_the_wrong_way_says_the_right_one(waiting):
    code, answer = waiting.http("GET", "/drain?task_manager=127.0.0.1:8028")
    assert (code, answer) == (405, {"error": "/drain takes POST, not GET; with curl: -X POST"})


def test_metrics_are_in_prometheus_form(waiting):
    code, kind, text = get(waiting, "/metrics")
    assert (code, kind) == (200, "text/plain")
    assert re.search(r'^weir_job_state\{.*state="WAITING_FOR_TASK_MANAGERS".*\} 1\.0$', text, re.MULTILINE)


def test_healthz(waiting):
    assert waiting.http("GET", "/healthz") == (200, {"status": "ok"})


def test_every_page_of_the_openapi_document_has_a_schema(waiting):
    code, document = waiting.http("GET", "/openapi.json")
    assert code == 200
    assert set(document["paths"]) >= {*PAGES, "/cancel"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], path
            codes = [code for code in operation["responses"] if code.startswith("2")]
            assert codes, path
            for code in codes:
                content = operation["responses"][code]["content"]
                assert all(body.get("schema") for body in content.values()), f"{method} {path}"


def test_docs_load_nothing_from_outside(waiting):
    code, kind, page = get(waiting, "/docs")
    assert (code, kind) == (200, "text/html")
    references = re.findall(r'(?:src|href)="([^"]+)"', page)
    assets = [reference for reference in references if reference.endswith((".js", ".css"))]
    assert {asset.rsplit(".", 1)[1] for asset in assets} == {"js", "css"}
    origin = f"http://127.0.0.1:{waiting.http_port}"
    assert not [item for item in references if "//" in item and not item.startswith(f"{origin}/")]
    for asset in assets:
        code, _, body = get(waiting, asset.removeprefix(origin))
        assert code == 200
        assert len(body) > 1000


def test_unknown_page_is_json_and_names_the_pages(waiting):
    code, body = waiting.http("GET", "/stauts")
    assert code == 404
    assert all(page in body["error"] for page in ["/stauts", *PAGES, "/cancel", "/docs"])


def test_wrong_method_is_json(waiting):
    code, body = waiting.http("GET", "/cancel")
    assert code == 405
    assert set(body) == {"error"}
    assert waiting.status()["state"] == "WAITING_FOR_TASK_MANAGERS"


@pytest.mark.parametrize("address", ["unix:/tmp/socket:1", "dns:///evil.example:80", "0.0.0.0:8018"])
def test_a_task_manager_registers_under_an_address(waiting, address):
    """The control plane would dial whatever stands there."""
    identity = identity_of(Role.TASK_MANAGER, SecurityConfig())
    plane = f"127.0.0.1:{waiting.grpc_port}"
    with connect(plane, Role.CONTROL_PLANE, [], identity=identity) as connection:
        request = control_pb2.RegisterRequest(
            protocol_version=PROTOCOL_VERSION, address=address, incarnation="x", operator_quota=1
        )
        with pytest.raises(grpc.RpcError) as refused:
            control_pb2_grpc.ControlPlaneStub(connection).Register(request, timeout=60)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert address in refused.value.details()


def test_cancel_while_waiting(tmp_path, forks):
    with Cluster(tmp_path, task_managers=1, popen=forks.popen) as cluster:
        process = cluster.start_control_plane("jobs.throughput", {"input": "x"}, exit_when_finished=False)
        cluster.wait_for(lambda status: True, "the first status")
        code, body = cluster.http("POST", "/cancel")
        assert (code, body) == (202, {"accepted": True, "state": "CANCELLED"})
        code, body = cluster.http("POST", "/cancel")
        assert code == 409
        assert "CANCELLED" in body["error"]
        assert cluster.status()["waiting_for"] == ""
        process.popen.terminate()
        assert process.wait() == 3


def ask(cluster, method, path, **headers):
    """The answer to a request with these headers, as a browser would send it."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "page",
    ["/cancel", "/drain?task_manager=x:1", "/scale?stage=1", "/savepoint?path=savepoints/x", "/checkpoints"],
)
def test_another_web_page_changes_nothing(waiting, page):
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
        code, body = ask(waiting, "POST", page, **headers)
        assert code == 403
        assert "controlPlane.allowed_origins" in body["error"]
    assert ask(waiting, "GET", "/scale?stage=1", Sec_Fetch_Site="cross-site")[0] == 403
    assert waiting.status()["state"] == "WAITING_FOR_TASK_MANAGERS"


def test_another_name_that_leads_here_reads_nothing(waiting):
    for page in ("/status", "/docs", "/nowhere"):
        code, body = ask(waiting, "GET", page, Host=f"evil.example:{waiting.http_port}")
        assert code == 403
        assert "'evil.example:" in body["error"]
        assert "controlPlane.allowed_hosts" in body["error"]


def test_the_pages_for_people_may_ask(waiting):
    for host in ("localhost", "127.0.0.1"):
        own = f"{host}:{waiting.http_port}"
        headers = {"Host": own, "Origin": f"http://{own}", "Sec_Fetch_Site": "same-origin"}
        # It gets as far as the job, which has no such stage.
        assert ask(waiting, "POST", "/scale?stage=99", **headers)[0] in (404, 409)
