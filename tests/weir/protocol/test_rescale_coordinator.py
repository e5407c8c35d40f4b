"""The coordinator's part in a rescale, as transcripts: what is reported, what it orders, how it ends."""

from dataclasses import replace

import pytest

from weir.errors import InvalidTransitionError
from weir.protocol.job.job_model import Assignment
from weir.protocol.rescale.rescale_coordinator import RescaleMachine
from weir.protocol.rescale.rescale_log import RESCALES_MAX, RescaleLog
from weir.protocol.rescale.rescale_model import (
    RESCALE_TRANSITIONS,
    CancelNew,
    DeployNew,
    FailJob,
    GroupsMigrated,
    GroupsOwned,
    InstallTable,
    JobStopped,
    NewSubtaskDeployed,
    NewSubtaskEnded,
    NewSubtaskRefused,
    PartyLost,
    Prepared,
    PrepareRefused,
    Rerouted,
    RescaleEnded,
    RescalePhase,
    RetiredFinished,
    SendAbort,
    SendPrepare,
    SendProceed,
    SendReroute,
)
from weir.protocol.rescale.rescale_plan import RefusalKind, RescalePlan
from weir.protocol.routing import GroupMove, RoutingTable
from weir.types import SubtaskId

UP, OLD, NEW, DOWN = SubtaskId(0, 0), SubtaskId(5, 0), SubtaskId(5, 1), SubtaskId(6, 0)
#: 1 -> 2: the new subtask gets groups 2 and 3.
OUT_TABLE = RoutingTable(5, 2, (0, 1), (0, 0, 1, 1), (1, 1, 2, 2))
OUT_MOVES = (GroupMove(2, 0, 1), GroupMove(3, 0, 1))
OUT = RescalePlan(5, 2, (0,), (0, 1), {NEW: "tm-b"}, (UP,), OUT_TABLE, OUT_MOVES)
#: 2 -> 1: subtask 1 retires.
IN_TABLE = RoutingTable(5, 3, (0,), (0, 0, 0, 0), (1, 1, 3, 3))
IN_MOVES = (GroupMove(2, 1, 0), GroupMove(3, 1, 0))
IN = RescalePlan(5, 3, (0, 1), (0,), {}, (UP,), IN_TABLE, IN_MOVES)

FORWARD = [
    InstallTable(5, (0, 1), OUT_TABLE),
    SendReroute((UP,), 2),
    SendProceed((OLD, NEW), 2),
]


class Transcript:
    """A machine, and a clock that adds 10 ms with every event."""

    def __init__(self, plan, *, migrates=False):
        self.now_ms = 100
        self.machine = RescaleMachine(1, plan, self.now_ms, migrates=migrates)
        self.first = self.machine.start()

    def tell(self, *events):
        actions = []
        for event in events:
            self.now_ms += 10
            actions += self.machine.handle(event, self.now_ms)
            self.machine.check_invariants()
        return actions

    @property
    def phase(self):
        return self.machine.phase


def preparing():
    run = Transcript(OUT)
    run.tell(NewSubtaskDeployed(NEW))
    assert run.phase is RescalePhase.PREPARING
    return run


def handing_over(plan=OUT, **options):
    run = Transcript(plan, **options)
    run.tell(*[NewSubtaskDeployed(subtask) for subtask in plan.new])
    run.tell(Prepared(OLD), Prepared(NEW), Rerouted(UP))
    assert run.phase is RescalePhase.HANDING_OVER
    return run


def test_scaling_out_step_by_step():
    run = Transcript(OUT)
    assert run.first == [DeployNew((Assignment(NEW, "tm-b"),))]
    assert run.tell(NewSubtaskDeployed(NEW)) == [SendPrepare((OLD, NEW), 2, OUT_MOVES, ())]
    assert run.tell(Prepared(OLD), Prepared(OLD)) == []
    assert run.tell(Prepared(NEW)) == FORWARD
    assert run.phase is RescalePhase.REROUTING
    assert run.tell(GroupsOwned(NEW, (2,))) == [], "reports may overtake each other"
    assert run.tell(Rerouted(UP)) == []
    assert run.phase is RescalePhase.HANDING_OVER
    assert run.tell(GroupsOwned(NEW, (3,))) == [RescaleEnded(RescalePhase.COMPLETE, "")]
    assert run.tell(GroupsMigrated((2,), 7), PartyLost(NEW, "late")) == []
    assert run.machine.to_dict() == {
        "id": 1,
        "stage": 5,
        "from": 1,
        "to": 2,
        "subtasks_before": [0],
        "subtasks_after": [0, 1],
        "phase": "COMPLETE",
        "cause": "",
        "groups_total": 2,
        "groups_owned": 2,
        "groups_migrated": 0,
        "bytes_moved": 0,
        "groups_relinked": 0,
        "bytes_sent": 0,
        "started_ms": 100,
        "phases": {
            "PLANNING": 100,
            "DEPLOYING": 100,
            "PREPARING": 110,
            "REROUTING": 140,
            "HANDING_OVER": 160,
            "COMPLETE": 170,
        },
    }


def test_state_follows_in_the_background():
    run = handing_over(migrates=True)
    assert run.tell(GroupsMigrated((2,), 40), GroupsOwned(NEW, (2, 3))) == []
    assert run.phase is RescalePhase.MIGRATING
    assert run.tell(GroupsMigrated((), 5)) == []
    assert run.tell(GroupsMigrated((3,), 60)) == [RescaleEnded(RescalePhase.COMPLETE, "")]
    assert (run.machine.to_dict()["bytes_moved"], run.machine.to_dict()["groups_migrated"]) == (105, 2)


def test_scaling_in_waits_for_the_end_of_who_retires():
    run = Transcript(IN)
    assert run.first == [SendPrepare((OLD, NEW), 3, IN_MOVES, (NEW,))]
    assert run.tell(Prepared(OLD), Prepared(NEW)) == [
        InstallTable(5, (0,), IN_TABLE),
        SendReroute((UP,), 3),
        SendProceed((OLD, NEW), 3),
    ]
    assert run.tell(Rerouted(UP), GroupsOwned(OLD, (2, 3))) == []
    assert run.phase is RescalePhase.HANDING_OVER
    assert run.tell(RetiredFinished(NEW)) == [RescaleEnded(RescalePhase.COMPLETE, "")]


def test_a_stage_without_hash_input_has_nothing_to_prepare():
    run = Transcript(RescalePlan(5, 1, (0,), (0, 1), {NEW: "tm-b"}, (UP,)), migrates=True)
    assert run.tell(NewSubtaskDeployed(NEW)) == [
        InstallTable(5, (0, 1), None),
        SendReroute((UP,), 1),
    ]
    assert run.tell(Rerouted(UP)) == [RescaleEnded(RescalePhase.COMPLETE, "")]

    run = Transcript(RescalePlan(5, 2, (0, 1), (0,), {}, (UP,)))
    assert run.first[1] == SendReroute((UP,), 2)
    assert run.tell(RetiredFinished(NEW)) == []
    assert run.tell(Rerouted(UP)) == [RescaleEnded(RescalePhase.COMPLETE, "")]


def test_a_refused_deployment_takes_the_rescale_back():
    cause = "subtask 5/1 could not be deployed: no such job"
    run = Transcript(OUT)
    assert run.tell(NewSubtaskRefused(NEW, "no such job")) == [
        CancelNew((), (NEW,)),
        RescaleEnded(RescalePhase.ABORTED, cause),
    ]


def test_an_owner_that_has_ended_takes_the_rescale_back():
    run = preparing()
    assert run.tell(PrepareRefused(OLD, "it has ended")) == [SendAbort((OLD,), 2), CancelNew((NEW,), ())]
    assert run.phase is RescalePhase.ABORTING
    assert run.tell(Prepared(NEW), RetiredFinished(OLD)) == []
    cause = "subtask 5/0 cannot take part: it has ended"
    assert run.tell(NewSubtaskEnded(NEW)) == [RescaleEnded(RescalePhase.ABORTED, cause)]


@pytest.mark.parametrize("make", [lambda: Transcript(OUT), preparing], ids=["DEPLOYING", "PREPARING"])
def test_losing_a_new_subtask_early_takes_the_rescale_back(make):
    run = make()
    actions = run.tell(PartyLost(NEW, "silence"))
    assert actions[-2:] == [
        CancelNew((), (NEW,)),
        RescaleEnded(RescalePhase.ABORTED, "subtask 5/1 is lost: silence"),
    ]


def test_losing_a_new_subtask_while_it_is_being_stopped():
    run = preparing()
    run.tell(PrepareRefused(OLD, "it has ended"))
    actions = run.tell(PartyLost(NEW, "silence"))
    assert [type(action) for action in actions] == [CancelNew, RescaleEnded]
    assert run.phase is RescalePhase.ABORTED


@pytest.mark.parametrize("party", [UP, OLD, DOWN], ids=str)
@pytest.mark.parametrize("make", [lambda: Transcript(OUT), preparing, handing_over])
def test_losing_any_other_party_fails_the_job(make, party):
    run = make()
    phase = run.phase.value
    fail, end = run.tell(PartyLost(party, "silence"))
    assert fail == FailJob(f"subtask {party} is lost while rescale 1 of stage 5 is in phase {phase}: silence")
    assert end == RescaleEnded(RescalePhase.FAILED, fail.cause)


def test_losing_a_new_subtask_late_fails_the_job():
    run = handing_over()
    assert isinstance(run.tell(PartyLost(NEW, "silence"))[0], FailJob)


def test_who_has_ended_is_missed_only_while_somebody_must_speak_for_it():
    assert preparing().tell(PartyLost(UP, "silence", had_finished=True))[-1] == CancelNew((NEW,), ())
    run = preparing()
    run.tell(Prepared(OLD), Prepared(NEW))
    assert isinstance(run.tell(PartyLost(UP, "silence", had_finished=True))[0], FailJob)
    run = handing_over()
    assert run.tell(PartyLost(UP, "silence", had_finished=True)) == []
    run = handing_over(IN)
    run.tell(RetiredFinished(NEW))
    assert isinstance(run.tell(PartyLost(NEW, "silence", had_finished=True))[0], FailJob), "its store is gone"


def test_the_end_of_the_job_ends_the_rescale():
    run = handing_over(migrates=True)
    assert run.tell(JobStopped("", finished=True)) == [RescaleEnded(RescalePhase.COMPLETE, "")]
    run = handing_over()
    assert run.tell(JobStopped("a user asked for it")) == [
        RescaleEnded(RescalePhase.FAILED, "a user asked for it")
    ]
    run = Transcript(OUT)
    assert run.tell(JobStopped("", finished=True)) == [RescaleEnded(RescalePhase.FAILED, "the job ended")]


@pytest.mark.parametrize(
    ("make", "event", "message"),
    [
        (preparing, Rerouted(UP), "Rerouted.* in phase PREPARING"),
        (preparing, GroupsOwned(NEW, (2,)), "GroupsOwned.* in phase PREPARING"),
        (preparing, Prepared(UP), "subtask 0/0 is not a subtask of the stage"),
        (handing_over, PrepareRefused(OLD, "no"), "PrepareRefused.* in phase HANDING_OVER"),
        (handing_over, GroupsOwned(NEW, (1,)), r"took groups \[1\], which the plan does not give it"),
        (handing_over, GroupsOwned(OLD, (2,)), r"took groups \[2\], which the plan does not give it"),
        (handing_over, GroupsMigrated((1,), 5), r"groups \[1\] were migrated"),
        (handing_over, RetiredFinished(OLD), "5/0 is not a retiring subtask"),
    ],
)
def test_illegal_events_change_nothing_and_tell_the_history(make, event, message):
    run = make()
    before = run.machine.to_dict()
    with pytest.raises(InvalidTransitionError, match=message) as caught:
        run.tell(event)
    assert "DEPLOYING -> PREPARING" in str(caught.value)
    assert run.machine.to_dict() == before


def test_every_phase_handles_events_and_can_end():
    of_sources = {RescalePhase.CHECKPOINTING, RescalePhase.REDEPLOYING}
    assert {*RescaleMachine.HANDLERS, *of_sources} == set(RESCALE_TRANSITIONS) == set(RescalePhase)
    for phase in RescalePhase:
        reached, todo = set(), [phase]
        while todo:
            for target in RESCALE_TRANSITIONS[todo.pop()] - reached:
                reached.add(target)
                todo.append(target)
        assert phase.is_final or any(target.is_final for target in reached)
    with pytest.raises(InvalidTransitionError, match="PREPARING -> DEPLOYING"):
        preparing().machine.start()


def test_one_rescale_at_a_time_and_late_reports_do_not_count():
    log = RescaleLog()
    assert (log.current, log.busy(), log.last_version(5)) == (None, None, 0)
    first, actions = log.add(OUT, 0, migrates=False)
    assert isinstance(actions[0], DeployNew)
    refusal = log.add(IN, 0, migrates=False)
    assert refusal.kind is RefusalKind.BUSY
    assert "rescale 1 of stage 5 is in phase DEPLOYING; ask again" in refusal.message
    log.handle(1, NewSubtaskRefused(NEW, "no"), 10)
    assert (first.phase, log.current, log.last_version(5)) == (RescalePhase.ABORTED, None, 2)
    with pytest.raises(ValueError, match="version 2 was used before"):
        log.add(OUT, 20, migrates=False)
    second, _ = log.add(IN, 20, migrates=False)
    assert log.handle(1, Prepared(OLD), 30) == log.handle(9, Prepared(OLD), 30) == []
    log.handle(2, Prepared(NEW), 30)
    assert second.phase is RescalePhase.PREPARING
    assert (log.current, log.get(1), log.get(3)) == (second, first, None)
    assert [report["id"] for report in log.to_list()] == [2, 1]


def test_old_rescales_are_forgotten():
    log = RescaleLog()
    for version in range(1, RESCALES_MAX + 3):
        log.add(RescalePlan(5, version, (0,), (0, 1), {NEW: "tm-b"}, ()), 0, migrates=False)
        log.handle(version, NewSubtaskRefused(NEW, "no"), 0)
    assert len(log.to_list()) == RESCALES_MAX
    assert (log.get(2), log.get(3) is None) == (None, False)


def test_rescales_of_an_earlier_control_plane_are_remembered_and_numbers_go_on():
    log = RescaleLog()
    log.add(OUT, 0, migrates=False)
    log.handle(1, NewSubtaskRefused(NEW, "no"), 10)
    log.add(IN, 20, migrates=False)
    later = RescaleLog(log.to_list(), log.used)
    assert (later.last_version(5), later.next_index(5)) == (log.last_version(5), log.next_index(5)) == (3, 2)
    [second, first] = later.to_list()
    assert first == log.report(1)
    assert (second["id"], second["phase"]) == (2, "FAILED")
    assert second["cause"] == "the control plane that led it ended while it was in phase PREPARING"
    assert later.current is None
    third, _ = later.add(replace(OUT, version=4), 30, migrates=False)
    assert third.rescale_id == 3
    assert [report["id"] for report in later.to_list()] == [3, 2, 1]
