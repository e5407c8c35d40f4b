"""The simulated control plane and the task managers' answers to it, around the real machines."""

from tests.weir.protocol.rescale_parties import Owner
from weir.protocol.placement import TaskManagerLoad
from weir.protocol.rescale_model import (
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
    RetiredFinished,
    SendAbort,
    SendPrepare,
    SendProceed,
    SendReroute,
)
from weir.protocol.rescale_owner import Abort, Prepare, Proceed
from weir.protocol.rescale_plan import RescaleRefusal, StageFacts, plan_rescale

STAGE = 1


class ControlPlane:
    """Starts rescales, carries out their actions, and passes reports on; all messages take a while."""

    def __init__(self, sim):
        self.sim = sim

    def party_lost(self, party, had_finished):
        rescale = self.sim.log.current
        if rescale is not None:
            self.tell(rescale.rescale_id, PartyLost(party.id, "killed", had_finished))
        elif not had_finished and (
            party in self.sim.upstreams or party.id.subtask_index in self.sim.table.subtasks
        ):
            self.sim.job_failed = f"{party.id} is lost"

    def request(self):
        """Scale out or in, or move one subtask to another index."""
        self.sim.requests_left -= 1
        if self.sim.requests_left:
            self.sim.later(self.sim.rng.random() * 60, self.request)
        if self.sim.log.current is not None or self.sim.joining:
            return
        subtasks = self.sim.table.subtasks
        target = self.sim.rng.randint(1, 4)
        if self.sim.rng.random() < 0.3:
            unused = min(set(range(5)) - set(subtasks))
            target = [*(set(subtasks) - {self.sim.rng.choice(subtasks)}), unused]
        upstream = tuple(u.id for u in self.sim.upstreams if u.alive)
        finished = tuple(i for i in subtasks if self.sim.owners[i].id in self.sim.finished)
        facts = StageFacts(STAGE, "count", False, subtasks, finished, upstream, table=self.sim.table)
        last = self.sim.log.last_version(STAGE)
        plan = plan_rescale(STAGE, {STAGE: facts}, [TaskManagerLoad("tm", 99)], target, last_version=last)
        if not isinstance(plan, RescaleRefusal):
            machine, actions = self.sim.log.add(plan, 0, migrates=self.sim.rng.random() < 0.5)
            self.act(machine, actions)

    def tell(self, rescale_id, event):
        machine = self.sim.log.get(rescale_id)
        actions = self.sim.log.handle(rescale_id, event, int(self.sim.now))
        machine.check_invariants()
        if self.sim.print_line is not None:
            self.sim.print_line(f"          rescale {rescale_id} {machine.phase.value} after {event}")
        self.act(machine, actions)

    def act(self, machine, actions):
        rescale = machine.rescale_id
        for action in actions:
            match action:
                case DeployNew(assignments):
                    for item in assignments:
                        self.sim.later_delay(self.deploy, rescale, item.subtask, machine.plan.upstream)
                case CancelNew(live, _):
                    for subtask in live:
                        # A task manager answers one command after the other for a subtask.
                        self.sim.later(self.sim.control_scale, self.cancel, rescale, subtask)
                case SendPrepare(to, version, moves, retiring):
                    for subtask in to:
                        event = Prepare(version, moves, subtask in retiring)
                        self.sim.later_delay(self.prepare, rescale, subtask, event)
                case SendProceed(to, version):
                    for subtask in to:
                        self.sim.later_delay(self.command, subtask, Proceed(version))
                case SendAbort(to, version):
                    for subtask in to:
                        self.sim.later_delay(self.command, subtask, Abort(version))
                case SendReroute(to, version):
                    table, retiring = machine.plan.table, machine.plan.retiring
                    for upstream in self.sim.upstreams:
                        if upstream.id in to:
                            self.sim.later_delay(upstream.switch, version, table, retiring, rescale)
                case InstallTable(_, _, table):
                    self.sim.table = table
                case FailJob(cause):
                    self.sim.job_failed = cause
                case RescaleEnded(phase, _):
                    self.sim.phases.append(phase)

    def deploy(self, rescale, subtask, upstream):
        if self.sim.rng.random() < 0.03:
            self.sim.later_delay(self.tell, rescale, NewSubtaskRefused(subtask, "no"))
            return
        for channel in [channel for channel in self.sim.arrivals if channel[1] == subtask.subtask_index]:
            del self.sim.arrivals[channel]
        self.sim.finished.discard(subtask)
        self.sim.owners[subtask.subtask_index] = Owner(
            self.sim, subtask.subtask_index, self.sim.table, upstream
        )
        self.sim.later_delay(self.tell, rescale, NewSubtaskDeployed(subtask))

    def cancel(self, rescale, subtask):
        owner = self.sim.owners.pop(subtask.subtask_index, None)
        if owner is None or owner.alive:
            self.sim.later_delay(self.tell, rescale, NewSubtaskEnded(subtask))

    def prepare(self, rescale, subtask, event):
        owner = self.sim.owners.get(subtask.subtask_index)
        if owner is None or not owner.alive:
            return
        if owner.finished:
            self.sim.later_delay(self.tell, rescale, PrepareRefused(subtask, "ended"))
            return
        owner.tell(event)
        self.sim.later_delay(self.tell, rescale, Prepared(subtask))

    def command(self, subtask, event):
        owner = self.sim.owners.get(subtask.subtask_index)
        if owner is not None and owner.alive and not owner.finished:
            owner.tell(event)

    def hand_over(self, target, event):
        owner = self.sim.owners[target]
        if owner.alive:
            owner.tell(event)

    # --- reports to the coordinator -------------------------------------------------------------------------

    def report_rerouted(self, rescale, subtask):
        self.sim.later_delay(self.tell, rescale, Rerouted(subtask))

    def report_owned(self, subtask, _version, groups):
        rescale = self.sim.log.current.rescale_id
        self.sim.later_delay(self.tell, rescale, GroupsOwned(subtask, groups))
        self.sim.later(
            self.sim.control_scale * 2, self.sim.later_delay, self.tell, rescale, GroupsMigrated(groups, 10)
        )

    def report_finished(self, subtask):
        self.sim.later_delay(self.note_finished, subtask)

    def note_finished(self, subtask):
        self.sim.finished.add(subtask)
        rescale = self.sim.log.current
        if rescale is None:
            return
        if subtask in rescale.plan.retiring:
            self.tell(rescale.rescale_id, RetiredFinished(subtask))
        everybody = {*rescale.plan.subtasks, *(upstream.id for upstream in self.sim.upstreams)}
        if everybody <= self.sim.finished and not rescale.phase.is_final:
            self.tell(rescale.rescale_id, JobStopped("", finished=True))
