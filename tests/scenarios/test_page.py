"""The page in a real headless Chromium, of a job on real processes: what it shows, what it names, and every button."""

import re
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

import pytest

import weir
from benchmarks import face_job
from experiments.browser import ENTER, ESCAPE, PROGRAMS, TAB, Browser, is_there
from experiments.cluster import FINAL_STATES, Cluster
from experiments.page_clusters import PageCluster, await_headline

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(
        not is_there(), reason=f"needs {' and '.join(PROGRAMS)} (Debian's chromium, chromium-driver)"
    ),
]

SCORE = 3


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def job(tmp_path_factory, forks):
    """A job with bad records, for all tests of this file, in order: the last one stops it."""
    with PageCluster(tmp_path_factory.mktemp("job"), popen=forks.popen) as cluster:
        cluster.run_job(events=100_000, bad=2)
        yield cluster


@pytest.fixture
def page(browser, job):
    """The page, opened anew."""
    browser.requests()
    browser.open(job.page)
    browser.wait_for("return document.querySelectorAll('#graph .node').length > 0", "the graph")
    yield browser
    assert browser.complaints() == []
    hosts = {
        urllib.parse.urlsplit(address).netloc for address in browser.requests() if address.startswith("http")
    }
    assert hosts == {f"127.0.0.1:{job.http_port}"}


def choose(page, stage):
    # At once: with a moment in between the page would show the stage that limits.
    page.run(
        "const select = document.querySelector('#stage'); select.value = arguments[0];"
        "select.dispatchEvent(new Event('change'))",
        stage,
    )


def answer(page, button, yes):
    """Press a button, look at the question, and answer it; returns the question."""
    page.click(button)
    page.wait_for("return document.querySelector('#dialog').open", "a question")
    question = page.text("#question")
    page.click("#yes" if yes else "#no")
    page.wait_for("return !document.querySelector('#dialog').open", "the end of the question")
    return question


def table(page, name):
    """The texts of all cells, by row."""
    rows = f"[...document.querySelectorAll('#{name} tbody tr')]"
    return page.run(f"return {rows}.map((row) => [...row.cells].map((it) => it.textContent))")


def test_a_step_that_becomes_slow_is_named_and_so_is_the_hot_key(page, job):
    await_headline(page, "keeps up")
    assert page.run("return document.querySelectorAll('.node.culprit').length") == 0
    job.slow_down(20_000)
    # How soon is judged by `python -m benchmarks face`: here others use the machine, too.
    await_headline(page, "stage 3 `score` limits")
    await_headline(page, "key group")
    assert "server-0 has " in page.text("#hot-keys")
    marked = page.run(
        "return [...document.querySelectorAll('.node.culprit')].map((node) => node.dataset.stage)"
    )
    assert marked == [str(SCORE)]
    assert "limits the job" in page.text(".node.culprit")
    assert page.run("return document.querySelectorAll('.edge.held').length") >= 1
    assert page.text("#stage option:checked").startswith("3 score")
    job.slow_down(0)
    await_headline(page, "keeps up")


def test_bad_records_are_shown_as_text(page, job):
    page.wait_for(
        "return document.querySelectorAll('#lost tbody tr').length === 2", "rows that did not make it"
    )
    rejected = {item["step"]: item for item in job.status()["rejected"]}
    shown = table(page, "lost")
    assert sorted(row[0] for row in shown) == ["clicks", "views"]
    for step, what, rows, reason, where in shown:
        item = rejected[step]
        assert (what, rows, where) == ("rejected", str(item["rejected"]), item["dead_letters"])
        assert item["first_reason"] in reason
    decided = page.run(
        "return import('/page/panels.js').then((panels) => {"
        "panels.showHappened([], [], [{time_ms: 1, text: '<img>'}]);"
        "return document.querySelector('#happened tbody tr').textContent; })"
    )
    assert decided.endswith("autoscaler<img>")
    assert page.run("return document.querySelectorAll('img').length") == 0


def test_a_keyboard_reaches_the_graph_and_leaves_a_question(page):
    for _ in range(30):
        page.press(TAB)
        if page.run("return document.activeElement.dataset?.stage") == "1":
            break
    page.press(ENTER)
    page.wait_for("return document.querySelector('#stage').value === '1'", "the chosen stage")
    page.click("#cancel")
    page.wait_for("return document.querySelector('#dialog').open", "a question")
    assert page.run("return document.activeElement.id") == "no"
    page.press(ESCAPE)
    page.wait_for("return !document.querySelector('#dialog').open", "the end of the question")


def test_a_phone_shows_it_without_scrolling_sideways_in_light_and_dark(page):
    try:
        page.resize(390, 844)
        backs = set()
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            assert page.run("return document.documentElement.scrollWidth") <= 390
            backs.add(page.run("return getComputedStyle(document.body).backgroundColor"))
        assert len(backs) == 2
    finally:
        page.resize(1280, 900)
        page.prefer("light")


def test_no_button_does_anything_before_it_has_asked(page, job):
    before = job.status()
    choose(page, SCORE)
    assert answer(page, "#savepoint", False) == "Make a savepoint?"
    assert answer(page, "#stop", False) == "Stop the job with a savepoint?"
    assert answer(page, "#cancel", False) == "Cancel the job?"
    assert answer(page, "#more", False) == "Scale stage 3 score from 2 to 3 subtasks?"
    assert answer(page, "#fewer", False) == "Scale stage 3 score from 2 to 1 subtask?"
    assert answer(page, "#managers button", False).startswith("Drain task manager 127.0.0.1:")
    after = job.status()
    assert (after["state"], after["generation"]) == ("RUNNING", before["generation"])
    assert job.http("GET", "/rescales")[1] == job.http("GET", "/drains")[1] == []
    assert not [item for item in job.http("GET", "/checkpoints")[1] if item["kind"] == "savepoint"]


def test_buttons_scale_drain_and_make_a_savepoint(page, job):
    choose(page, SCORE)
    for number, (button, count) in enumerate((("#more", 3), ("#fewer", 2)), start=1):
        answer(page, button, True)
        page.wait_for(
            f"return document.querySelector('#told').textContent === 'rescale {number} has begun'",
            "an answer",
        )
        page.wait_for(
            f"return document.querySelectorAll('#subtasks tbody tr').length === {count}", "its subtasks"
        )
        newest = "document.querySelector('#happened tbody tr')?.textContent ?? ''"
        page.wait_for(f"return /rescale{number}: .*COMPLETE/.test({newest})", "the end of the rescale")
        assert job.status()["stages"][SCORE]["parallelism"] == count
    path = str(job.directory / "savepoints" / "monday")
    page.click("#savepoint")
    page.run("document.querySelector('#path').value = arguments[0]", path)
    page.click("#yes")
    page.wait_for("return document.querySelectorAll('#strip .savepoint').length === 1", "the savepoint")
    page.wait_for("return document.querySelector('#strip .savepoint').title.includes('COMPLETE')", "its end")
    answer(page, "#managers button", True)
    page.wait_for("return document.querySelector('#managers button').textContent === 'EMPTY'", "the drain")
    assert [drain["state"] for drain in job.http("GET", "/drains")[1]] == ["EMPTY"]


def test_a_profile_names_the_line_in_words_and_in_a_flame_graph(page, job):
    job.slow_down(20_000)
    await_headline(page, "stage 3 `score` limits")
    choose(page, SCORE)
    assert answer(page, "#profile", False) == "Profile stage 3 score for 10 seconds?"
    assert job.http("GET", "/profile")[0] == 404
    # Two seconds do for a test.
    assert job.http("POST", f"/profile?stage={SCORE}&seconds=2")[0] == 202
    assert job.http("POST", f"/profile?stage={SCORE}")[0] == 409
    page.wait_for("return document.querySelectorAll('#flame rect').length > 5", "a flame graph")
    job.slow_down(0)
    found = job.http("GET", "/profile")[1]
    assert found["state"] == "DONE"
    # Of two subtasks the one without the hot key waits.
    hottest = next(text for text in found["words"] if "waits" not in text)
    assert re.fullmatch(
        r"\d+ % in `score` of step `score`, (most of it in )?line \d+ of benchmarks/face_job.py", hottest
    ), hottest
    line = int(re.search(r"line (\d+)", hottest)[1])
    assert "time.sleep(" in Path(face_job.__file__).read_text().splitlines()[line - 1]
    words = "return [...document.querySelectorAll('#profile-words li')].map((it) => it.textContent)"
    assert page.run(words) == found["words"]
    titles = page.run("return [...document.querySelectorAll('#flame title')].map((it) => it.textContent)")
    assert len(titles) == len(found["boxes"])
    assert any(title.startswith("score: ") and f"line {line} of" in title for title in titles)


def test_the_logs_of_all_processes_are_shown(page, job):
    page.click("#log-part summary")
    text = "document.querySelector('#log').textContent"
    page.wait_for(f"return {text}.includes('control_plane INFO')", "the log of the control plane")
    address = job.status()["task_managers"][0]["address"]
    page.run(
        "const select = document.querySelector('#log-of'); select.value = arguments[0];"
        "select.dispatchEvent(new Event('change'))",
        address,
    )
    page.wait_for(f"return {text}.includes('registered at the control plane')", "that of a task manager")


def differences(page, status):
    """Where the page shows something else than a status says: what is shown, and what is said."""
    pairs = [
        (page.text("#headline"), status["headline"]["text"]),
        (page.text("#job"), status["job"]),
        ([row[0] for row in table(page, "managers")], [it["address"] for it in status["task_managers"]]),
        (
            [row[1] for row in table(page, "managers")],
            [f"{it['subtasks']} of 12" for it in status["task_managers"]],
        ),
    ]
    for stage in status["stages"]:
        choose(page, stage["stage"])
        said = [
            [
                str(it[name])
                for name in ("subtask_index", "task_manager", "state", "records_in", "records_out")
            ]
            for it in stage["subtasks"]
        ]
        rows = [[*row[:3], *(cell.replace(",", "") for cell in row[6:8])] for row in table(page, "subtasks")]
        busy = max(it["recent_busy_ratio"] for it in stage["subtasks"])
        blocked = max(it["recent_backpressured_ratio"] for it in stage["subtasks"])
        texts = f"[...document.querySelectorAll(`.node[data-stage='{stage['stage']}'] text`)]"
        lines = page.run(f"return {texts}.map((it) => it.textContent)")
        shares = [f"busy {int(busy * 100 + 0.5)} %", f"blocked {int(blocked * 100 + 0.5)} %"]
        pairs += [(rows, said), ([lines[0], *lines[2:]], [f"{stage['stage']} {stage['name']}", *shares])]
    return [pair for pair in pairs if pair[0] != pair[1]]


def test_what_it_shows_is_what_status_says(page, job, tmp_path):
    """Of a job that is over, which does not change while it is looked at; the last of its buttons ends it."""
    page.click("#stop")
    page.run(
        "document.querySelector('#path').value = arguments[0]", str(job.directory / "savepoints" / "end")
    )
    page.click("#yes")
    status = job.wait_for(lambda status: status["state"] in FINAL_STATES, "the end")
    assert status["state"] == "STOPPED"
    page.wait_for("return document.querySelector('#state').textContent === 'STOPPED'", "the end on the page")
    deadline_s = time.monotonic() + 60
    # Until both have the last look at the job.
    while (wrong := differences(page, job.status())) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert wrong == []
    command = [sys.executable, "-m", "weir", "status", f"127.0.0.1:{job.http_port}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == job.status()["headline"]["text"]
    assert page.run("return document.querySelectorAll('#strip span').length") == len(
        job.http("GET", "/checkpoints")[1]
    )
    assert_report_shows(page, job, tmp_path)


def assert_report_shows(page, job, directory):
    """One file shows the same, without anybody to ask."""
    nodes = "return [...document.querySelectorAll('.node text')].map((it) => it.textContent)"
    before = page.run(nodes), page.text("#headline"), len(table(page, "happened"))
    page.open(weir.report(f"127.0.0.1:{job.http_port}", directory / "report.html").as_uri())
    page.wait_for("return document.querySelectorAll('.node').length > 0", "the graph")
    assert (page.run(nodes), page.text("#headline"), len(table(page, "happened"))) == before
    assert page.run("return document.querySelector('.chart path').getAttribute('d').length") > 20
    assert not page.run("return document.querySelector('#cancel').checkVisibility()")
    page.open(job.page)
    page.wait_for("return document.querySelector('#state').textContent === 'STOPPED'", "the page")
    for item in ("savepoint", "stop", "cancel", "more", "fewer", "profile"):
        assert page.run("return document.getElementById(arguments[0]).disabled", item)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory, forks):
    """A job that waits, for three tests in order: the second cancels it, the third kills its control plane."""
    settings = {"controlPlane.max_parallelism": 256}
    with Cluster(tmp_path_factory.mktemp("waiting"), settings=settings, popen=forks.popen) as cluster:
        parameters = {"input": "x", "parallelism": 200}
        cluster.start_control_plane("jobs.server_count", parameters, exit_when_finished=False)
        cluster.wait_for(lambda status: True, "the first status")
        yield cluster


def test_a_stage_of_200_subtasks_is_shown_with_the_busiest_first(browser, waiting):
    """Of a job that waits, since 800 threads would need more than a machine of tests; then with loads of their own."""
    status = waiting.status()
    assert [len(stage["subtasks"]) for stage in status["stages"]] == [1, 200, 200, 200, 200]
    browser.open(f"http://127.0.0.1:{waiting.http_port}/")
    browser.wait_for("return document.querySelectorAll('#graph .node').length === 5", "the graph")
    choose(browser, 3)
    browser.wait_for("return document.querySelectorAll('#subtasks tbody tr').length === 200", "the subtasks")
    assert browser.text("#subtasks-order").startswith("200 subtasks, the busiest first: it is 0 % busy")
    assert browser.run("return document.querySelector('#subtasks').parentElement.clientHeight") <= 440
    browser.run("window.seen = 0; new EventSource('/live').onmessage = () => { window.seen += 1; }")
    browser.wait_for("return window.seen >= 3", "moments of 800 subtasks")
    stage = status["stages"][3]
    for subtask in stage["subtasks"]:
        subtask["recent_busy_ratio"] = subtask["subtask_index"] * 77 % 200 / 200
    # Before the next moment comes.
    shown = browser.run(
        "return import('/page/panels.js').then((panels) => { panels.showSubtasks(arguments[0]); return ["
        "document.querySelector('#subtasks-order').textContent,"
        "[...document.querySelectorAll('#subtasks tbody tr')].map((row) => Number(row.cells[0].textContent))]; })",
        stage,
    )
    assert shown[0] == (
        "200 subtasks, the busiest first: it is 100 % busy, half of them are 50 % or less, the idlest is 0 %."
    )
    assert shown[1] == sorted(range(200), key=lambda index: -(index * 77 % 200))
    try:
        browser.resize(390, 844)
        assert browser.run("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.resize(1280, 900)
    browser.open("about:blank")
    browser.complaints()


def test_cancel_cancels(browser, waiting):
    browser.open(f"http://127.0.0.1:{waiting.http_port}/")
    await_headline(browser, "waiting")
    answer(browser, "#cancel", True)
    await_headline(browser, "cancelled")
    assert waiting.status()["state"] == "CANCELLED"
    browser.open(f"http://127.0.0.1:{waiting.http_port}/docs")
    browser.wait_for("return document.body.innerText.includes('/checkpoints')", "the page for programs")
    assert browser.complaints() == []


def test_a_page_says_that_the_control_plane_is_gone(browser, waiting):
    browser.open(f"http://127.0.0.1:{waiting.http_port}/")
    browser.wait_for("return document.querySelectorAll('#graph .node').length === 5", "the graph")
    process = waiting.processes["control_plane"]
    process.popen.kill()
    process.wait()
    browser.wait_for(
        "return document.querySelector('#connection').textContent.startsWith('no word from the control plane')",
        "a word of that",
    )
    browser.open("about:blank")
    browser.complaints()


def test_a_source_that_comes_late_is_named(browser, tmp_path, forks):
    with PageCluster(tmp_path, task_managers=1, popen=forks.popen) as cluster:
        cluster.run_job(events=100_000, late_ms=60_000)
        browser.open(cluster.page)
        await_headline(browser, "source `clicks` holds event time back")
        assert cluster.status()["headline"]["stage"] == 1
    browser.open("about:blank")
    browser.complaints()
