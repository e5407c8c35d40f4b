"""kill -9 of each party in each phase of a rescale: the job fails and says where, or goes on with right results.

A phase is held by stopping a process (SIGSTOP) that it needs, or by state that takes a while to move.
"""

import signal
import time
from functools import partial
from itertools import product

import pytest

from experiments.cluster import FINAL_STATES
from experiments.soak_check import check_rows_so_far
from tests.effort import cases
from tests.scenarios.parties import (
    BALLAST_BYTES,
    HYBRID,
    KEYED_STAGE,
    LOCAL,
    SETTINGS,
    SLOW,
    Parties,
    address,
    check_failed,
    check_goes_on,
    request,
    send,
    start_job,
    wait_phase,
    write_rows,
)

pytestmark = pytest.mark.scenario


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("losses"))


@pytest.fixture
def job(make_cluster, events, tmp_path, release):
    return partial(start_job, make_cluster, events, tmp_path, release)


def hold(parties, phase):
    """Begin a rescale that does not leave this phase, because of who is stopped; gives its page."""
    cluster = parties.cluster
    if phase != "MIGRATING":
        parties.stop("new" if phase == "DEPLOYING" else "old")
    url = request(cluster, parties.stage)
    # From phase to phase: an earlier one needs who is to be stopped in a later one.
    if phase in ("REROUTING", "HANDING_OVER"):
        wait_phase(cluster, url, "PREPARING")
        parties.stop("upstream")
        parties.go_on("old")
    if phase == "HANDING_OVER":
        wait_phase(cluster, url, "REROUTING")
        parties.stop("old")
        parties.go_on("upstream")
    wait_phase(cluster, url, phase)
    return url


PHASES = ["DEPLOYING", "PREPARING", "REROUTING", "HANDING_OVER", "MIGRATING"]
#: Each phase, and each party at least twice.
SOME_LOSSES = [*zip(PHASES, ["new", "new", "upstream", "old", "old"], strict=True), ("MIGRATING", "upstream")]


@pytest.mark.parametrize(
    ("phase", "party"), cases(SOME_LOSSES, [*product(PHASES, ["old", "new", "upstream"])])
)
def test_kill_of_a_party(job, events, tmp_path, release, phase, party):
    cluster = job(SLOW, BALLAST_BYTES if phase == "MIGRATING" else 0)
    parties = Parties(cluster)
    url = hold(parties, phase)
    parties.kill(party)
    report = wait_phase(cluster, url, "FAILED", "ABORTED", "COMPLETE")
    if party == "new" and phase in ("DEPLOYING", "PREPARING"):
        # It may have prepared itself before it was killed, so that the others went on without waiting for it.
        assert report["phase"] == "ABORTED" or phase == "PREPARING"
        if report["phase"] == "ABORTED":
            assert (
                "could not be deployed" in report["cause"]
                or address(cluster, cluster.idle) in report["cause"]
            )
            release.touch()
            check_goes_on(cluster, events, tmp_path)
            return
    # That it fails is certain from here on; other tests wait for the end of the lost one's lease.
    cause = check_failed(cluster, address(cluster, parties.names[party]), states=("FAILING", "FAILED"))
    # What was taken back, or done, before the loss was noticed, is not its cause.
    assert f"rescale 1 of stage {parties.stage}" in cause or report["phase"] != "FAILED", cause
    cluster.stop()
    assert check_rows_so_far(events, tmp_path / "out") > 0


@pytest.mark.parametrize("party", ["old", "new"])
def test_kill_of_an_owner_while_state_is_shipped(job, events, tmp_path, party):
    cluster = job(LOCAL, BALLAST_BYTES)
    parties = Parties(cluster)
    hold(parties, "HANDING_OVER")
    parties.kill(party)
    lost, rescale = address(cluster, parties.names[party]), f"rescale 1 of stage {parties.stage}"
    check_failed(cluster, lost, rescale, states=("FAILING", "FAILED"))
    cluster.stop()
    assert check_rows_so_far(events, tmp_path / "out") > 0


def test_a_task_manager_that_has_nothing_but_state(job):
    """Hybrid without migration: being drained, it has no subtask any more, and its state is still being fetched."""
    cluster = job({**HYBRID, "taskManager.migration_bytes_per_second": 65_536}, ballast_bytes=BALLAST_BYTES)
    victim, place = cluster.without_source, address(cluster, cluster.without_source)
    assert cluster.http("POST", f"/drain?task_manager={place}")[0] == 202
    cluster.wait_for(lambda _: cluster.http("GET", "/drains")[1][0]["groups_left"] > 0, "the fetch")
    code, body = cluster.http("POST", "/scale?stage=2&parallelism=2")
    assert (code, place in body["error"]) == (409, True)
    send(cluster, victim, signal.SIGKILL)
    check_failed(cluster, place)


@pytest.mark.parametrize("drain_timeout_s", [600, 2])
def test_a_task_manager_that_leaves_before_it_is_empty(job, events, tmp_path, drain_timeout_s):
    """At a second SIGTERM, or when the drain takes too long: the job fails and says so, with nothing wrong written."""
    settings = {**HYBRID, "taskManager.migration_bytes_per_second": 65_536}
    cluster = job({**settings, "taskManager.drain_timeout_s": drain_timeout_s}, BALLAST_BYTES)
    victim = cluster.processes[cluster.without_source]
    victim.popen.terminate()
    if drain_timeout_s > 60:
        victim.wait_for_text("a second signal stops at once")
        victim.popen.terminate()
    assert victim.wait() == 0
    place = address(cluster, cluster.without_source)
    check_failed(cluster, place, "it was not empty: it did not wait for the end of its drain")
    assert ("not empty after taskManager.drain_timeout_s" in victim.log_path.read_text()) == (
        drain_timeout_s == 2
    )
    assert check_rows_so_far(events, tmp_path / "out") > 0


def test_a_short_stop_of_every_party(job, events, tmp_path, release):
    """Processes that come back before their leases end do no harm."""
    cluster = job({**SETTINGS, "controlPlane.lease_timeout_ms": 20_000}, ballast_bytes=100)
    for number, name in enumerate(("a", "b", "c")):
        send(cluster, name, signal.SIGSTOP)
        url = request(cluster, KEYED_STAGE, 2 - number % 2)
        time.sleep(0.7)
        send(cluster, name, signal.SIGCONT)
        wait_phase(cluster, url, "COMPLETE")
    release.touch()
    check_goes_on(cluster, events, tmp_path)


def test_cancel_during_a_rescale(job):
    cluster = job(SLOW, ballast_bytes=BALLAST_BYTES)
    url = request(cluster, KEYED_STAGE)
    wait_phase(cluster, url, "REROUTING", "HANDING_OVER", "MIGRATING")
    assert cluster.http("POST", "/cancel")[0] == 202
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end")
    assert (status["state"], status["cause"]) == ("CANCELLED", "")
    assert wait_phase(cluster, url, "FAILED")["cause"]
