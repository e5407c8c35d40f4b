"""What the page asks for, of a real control plane that waits for task managers."""

import base64
import contextlib
import hashlib
import http.client
import json
import re
import time
import urllib.error
import urllib.request

import pytest

import weir
from control_plane.web.live import VIEWERS_MAX
from experiments.cluster import Cluster

pytestmark = pytest.mark.scenario

SECRET = "hunter2"


@pytest.fixture(scope="module")
def waiting(tmp_path_factory, forks):
    """A cluster without task managers."""
    with Cluster(tmp_path_factory.mktemp("page"), task_managers=2, popen=forks.popen) as cluster:
        cluster.start_control_plane(
            "jobs.server_count",
            {"input": f"s3://me:{SECRET}@bucket/in</script><img src=x>", "parallelism": 1},
            exit_when_finished=False,
            settings={
                "controlPlane.savepoint_roots": f"s3://me:{SECRET}@bucket/savepoints",
                "autoscaler.dry_run": "true",
                "autoscaler.hook_command": f"start-some,--header,Bearer {SECRET}",
                "autoscaler.hook_url": f"https://hooks.example/services/{SECRET}",
            },
        )
        cluster.wait_for(lambda status: True, "the first status")
        yield cluster


def ask(cluster, path, method="GET", headers=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.http_port}{path}", method=method, headers=headers or {}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.headers, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


class Viewer:
    """A page's stream of events."""

    def __init__(self, cluster, method="GET"):
        self.connection = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60)
        self.connection.request(method, "/live")
        self.reply = self.connection.getresponse()

    def event(self):
        lines = iter(self.reply.readline, b"\n")
        return json.loads(b"".join(lines).removeprefix(b"data: "))

    def close(self):
        self.reply.close()
        self.connection.close()


def test_the_root_is_a_page_whose_files_are_all_here(waiting):
    code, headers, page = ask(waiting, "/")
    assert (code, headers.get_content_type()) == (200, "text/html")
    wanted = set(re.findall(r'(?:src|href)="(/page/[^"]+)"', page))
    kinds = set()
    while wanted:
        path = wanted.pop()
        code, headers, text = ask(waiting, path)
        assert code == 200, path
        assert "http://" not in text.replace("http://www.w3.org", "")
        kinds.add(headers.get_content_type())
        wanted |= {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', text)}
    assert kinds == {"text/css", "text/javascript", "image/svg+xml"}


def test_no_script_of_the_page_makes_markup_of_texts(waiting):
    scripts = ["main", "dom", "graph", "charts", "panels", "actions", "format", "diagnosis"]
    for name in scripts:
        _, _, text = ask(waiting, f"/page/{name}.js")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/status", "/nothing", "/page/../http.py", "/page/nothing.js"]
)
def test_every_page_says_that_nobody_may_frame_it_or_load_into_it(waiting, path):
    code, headers, _ = ask(waiting, path)
    policy = headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy.split("script-src")[1].split(";")[0]
    assert headers["x-content-type-options"] == "nosniff"
    assert code == (200 if path in ("/", "/docs", "/status") else 404)


def test_a_refusal_of_the_guard_has_the_headers_too(waiting):
    code, headers, _ = ask(waiting, "/live", headers={"Host": "evil.example"})
    assert code == 403
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/cancel",
        "/scale?stage=0&parallelism=2",
        "/drain?task_manager=a:1",
        "/savepoint?path=x",
        "/stop?savepoint=x",
        "/profile?stage=0",
    ],
)
def test_what_the_buttons_ask_is_refused_to_pages_of_others(waiting, path):
    code, _, text = ask(waiting, path, "POST", {"Origin": "http://evil.example"})
    assert code == 403
    assert "evil.example" in text
    assert waiting.status()["state"] == "WAITING_FOR_TASK_MANAGERS"


def test_events_come_at_once_and_then_each_second(waiting):
    viewer = Viewer(waiting)
    first, second = viewer.event(), viewer.event()
    viewer.close()
    assert viewer.reply.headers.get_content_type() == "text/event-stream"
    assert first["status"]["headline"] == second["status"]["headline"] == waiting.status()["headline"]
    assert first["status"]["headline"]["verdict"] == "not_running"
    assert second["point"]["time_ms"] > first["point"]["time_ms"]


def test_whoever_asks_only_for_the_head_is_not_kept(waiting):
    with contextlib.closing(Viewer(waiting, "HEAD")) as viewer:
        assert viewer.reply.status == 200
        assert viewer.reply.read() == b""


def test_pages_are_bounded_and_one_that_closes_makes_room(waiting):
    viewers = [Viewer(waiting) for _ in range(VIEWERS_MAX)]
    code, _, text = ask(waiting, "/live")
    assert code == 503
    assert "too many pages" in json.loads(text)["error"]
    for viewer in viewers:
        viewer.close()
    for _ in range(600):
        viewer = Viewer(waiting)
        if viewer.reply.status == 200:
            break
        viewer.close()
        time.sleep(0.05)
    assert viewer.event()["status"]["job"]
    viewer.close()


def test_history_has_as_many_values_as_times(waiting):
    code, found = waiting.http("GET", "/history")
    assert code == 200
    assert len(found["times_ms"]) >= 1
    assert {len(column) for column in found["columns"].values()} == {len(found["times_ms"])}
    assert {"rows_per_s", "latency_p99_ms", "busy/0"} <= set(found["columns"])


def test_a_report_is_one_file_that_no_name_of_the_job_can_change(waiting, tmp_path):
    page = weir.report(f"127.0.0.1:{waiting.http_port}", tmp_path / "report.html").read_text()
    assert len(re.findall("</script", page)) == 2
    assert "<img" not in page
    assert not re.search(r'(?:src|href)="/page', page)
    digest = hashlib.sha256(page.split('<script type="module">')[1].split("</script>")[0].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in page


def test_who_asks_another_program_for_a_report_is_told():
    with pytest.raises(weir.WeirError, match="does not answer"):
        weir.report("127.0.0.1:1")


def test_no_credential_is_shown(waiting):
    for path in ("/status", "/plan", "/configuration", "/history", "/logs", "/report", "/"):
        assert SECRET not in ask(waiting, path)[2], path


def test_the_end_of_the_log_is_shown_and_of_a_task_manager_that_is_not_there_none(waiting):
    code, found = waiting.http("GET", "/logs?entries=3")
    assert (code, found["process"]) == (200, "control plane")
    assert 1 <= len(found["entries"]) <= 3
    assert any("control_plane INFO" in entry for entry in waiting.http("GET", "/logs")[1]["entries"])
    code, answer = waiting.http("GET", "/logs?task_manager=h:1")
    assert (code, answer) == (404, {"error": "no task manager 'h:1'; there are none"})
    for entries in (0, 401, "x"):
        assert waiting.http("GET", f"/logs?entries={entries}")[0] == 400


def test_a_job_that_waits_has_no_profile(waiting):
    code, answer = waiting.http("POST", "/profile?stage=0")
    assert code == 409
    assert "only what runs can be looked at" in answer["error"]
    assert waiting.http("POST", "/profile?stage=77")[0] == 404
    assert waiting.http("POST", "/profile?stage=0&seconds=61")[0] == 400
    code, answer = waiting.http("GET", "/profile")
    assert code == 404
    assert "POST /profile" in answer["error"]


def test_settings_of_the_autoscaler_are_shown(waiting):
    shown = json.loads(ask(waiting, "/configuration")[2])
    assert set(shown) == {"control_plane", "autoscaler"}
    assert shown["autoscaler"]["dry_run"] is True
    assert shown["autoscaler"]["hook_command"] == ["start-some", "***"]


def test_open_pages_do_not_hold_up_the_end(tmp_path, forks):
    with Cluster(tmp_path, task_managers=1, popen=forks.popen) as cluster:
        report = tmp_path / "run.html"
        process = cluster.start_control_plane(
            "jobs.throughput", {"input": "x"}, exit_when_finished=False, arguments=["--report", str(report)]
        )
        cluster.wait_for(lambda status: True, "the first status")
        viewer = Viewer(cluster)
        viewer.event()
        process.popen.terminate()
        assert process.wait() == 3
        assert '"state":"CANCELLED"' in report.read_text()
        # Uvicorn waits two seconds for streams that do not end by themselves, and says so.
        assert "timeout graceful shutdown" not in process.log_tail()
        while viewer.reply.readline():
            pass
        viewer.close()
