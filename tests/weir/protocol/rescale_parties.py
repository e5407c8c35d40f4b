"""Simulated upstream subtasks and owners around the real machines; rows are (upstream, key, seq, time)."""

from weir.protocol.rescale_owner import (
    HandOver,
    HandoverReceived,
    InputAdded,
    InputEnded,
    MarkerReceived,
    OwnerMachine,
    Retired,
    StartFlush,
    TakeOwnership,
)
from weir.protocol.watermark_hold import WatermarkHold
from weir.protocol.watermarks import WatermarkTracker
from weir.types import SubtaskId

GROUPS = 8


class Violation(AssertionError):
    """The protocol did what it must never do."""


def group_of(key):
    return key % GROUPS


class FirstMarkerIsEnough(OwnerMachine):
    """Broken: hands over when one input has switched."""

    def _is_aligned(self, version):
        return not self._markers or any(seen >= version for seen in self._markers.values())


class FinishesEarly(OwnerMachine):
    """Broken: ends with its inputs, whatever is on its way."""

    @property
    def may_finish(self):
        return not self._markers


class HandsOverUncertain(OwnerMachine):
    """Broken: hands over when all inputs ended, although the plan may still be aborted."""

    def handle(self, event):
        actions = super().handle(event)
        if self._plan is not None and not self._markers:
            self._certain_version = self._plan.version
            actions += [*self._give_away(), *self._close()]
        return actions


MACHINES = {
    "first marker": FirstMarkerIsEnough,
    "finishes early": FinishesEarly,
    "hands over uncertain": HandsOverUncertain,
}


class Upstream:
    """Emits rows of all keys, holds some back, and ends some time."""

    def __init__(self, sim, index):
        self.sim, self.id = sim, SubtaskId(0, index)
        self.alive, self.ended = True, False
        self.rows_left = sim.rng.choice([0, 10, 40, 100, 150])
        # One that joins later has nothing older than what the others have sent.
        self.seqs, self.time = {}, max((other.time for other in sim.upstreams), default=0)
        self.table, self.consumers = sim.table, sim.table.subtasks
        self.held = {}
        sim.later(sim.rng.random() * 5, self.emit)

    def emit(self):
        if not self.alive:
            return
        rng = self.sim.rng
        if not self.rows_left:
            self.flush()
            self.ended = True
            self.send_all(("end",))
            self.sim.control_plane.report_finished(self.id)
            return
        for _ in range(min(self.rows_left, rng.randint(1, 4))):
            key = rng.randrange(12)
            seq = self.seqs[key] = self.seqs.get(key, -1) + 1
            self.time += 1
            self.hold((self.id, key, seq, self.time))
            self.rows_left -= 1
            self.sim.rows_emitted += 1
        if rng.random() < 0.5:
            self.flush()
            if rng.random() < 0.3:
                self.send_all(("watermark", self.time))
        self.sim.later(rng.random() * 4, self.emit)

    def hold(self, row):
        self.held.setdefault(self.table.groups[group_of(row[1])], []).append(row)

    def flush(self):
        for consumer, rows in self.held.items():
            self.sim.send(self.id, consumer, ("rows", rows))
        self.held = {}

    def send_all(self, element):
        for consumer in self.consumers:
            self.sim.send(self.id, consumer, element)

    def switch(self, version, table, retiring, rescale_id):
        """Reroute: what is held takes the new way, behind the marker."""
        if not self.alive:
            return
        retired = [subtask.subtask_index for subtask in retiring]
        new = [index for index in table.subtasks if index not in self.consumers]
        held = sorted((row for rows in self.held.values() for row in rows), key=lambda row: row[3])
        if self.sim.broken == "held rows keep their way" and not self.ended:
            self.sim.later(0, self.sim.send_held_late, self.id, self.held)
            held = []
        self.held = {}
        targets = new if self.ended else sorted({*self.consumers, *new})
        if self.ended and self.sim.broken == "nobody speaks for the ended":
            targets = []
        for index in targets:
            self.sim.send(self.id, index, ("marker", version))
            if self.ended or index in retired:
                self.sim.send(self.id, index, ("end",))
        self.table, self.consumers = table, table.subtasks
        for row in held:
            self.hold(row)
        self.sim.control_plane.report_rerouted(rescale_id, self.id)


class Owner:
    """Processes what it owns and parks the rest."""

    def __init__(self, sim, index, table, inputs):
        self.sim, self.id = sim, SubtaskId(1, index)
        self.alive, self.finished, self.retires_in = True, False, 0
        self.machine = MACHINES.get(sim.broken, OwnerMachine)(index, table, inputs)
        self.mask = self.machine.owned_mask.tolist()
        self.watermarks, self.inputs = WatermarkTracker(inputs), set(inputs)
        self.parked, self.hold, self.shown_ms = {}, WatermarkHold(), -1

    def receive(self, source, element):
        if not self.alive:
            return
        if self.finished:
            raise Violation(f"{element} for owner {self.id}, which has finished")
        match element:
            case ("rows", rows):
                for row in rows:
                    self.take(row)
            case ("watermark", time):
                self.watermarks.advance(source, time)
                self.show_watermark()
            case ("marker", version):
                self.tell(MarkerReceived(source, version))
            case _:
                self.watermarks.end(source)
                self.tell(InputEnded(source))

    def add_input(self, source):
        """A channel is opened; it comes to nothing if this subtask has ended."""
        if self.alive and not self.finished:
            self.inputs.add(source)
            self.watermarks.add(source)
            self.tell(InputAdded(source))

    def end_input(self, source):
        """A channel that was opened is not used after all."""
        if source in self.inputs:
            self.inputs.discard(source)
            self.receive(source, ("end",))

    def take(self, row):
        group = group_of(row[1])
        if self.mask[group] or self.sim.broken == "no parking":
            self.sim.process(self, row)
            return
        if row[3] <= self.shown_ms:
            raise Violation(f"{row} is parked behind the watermark {self.shown_ms} of {self.id}")
        self.parked.setdefault(group, []).append(row)
        self.sim.rows_parked += 1
        self.show_watermark()

    def show_watermark(self):
        held = bool(self.parked) and self.sim.broken != "watermark runs on"
        self.shown_ms = self.hold.visible_ms(self.watermarks.combined_ms, has_parked_rows=held)
        if any(row[3] <= self.shown_ms for rows in self.parked.values() for row in rows):
            raise Violation(f"the watermark of {self.id} passed a parked row")

    def tell(self, event):
        """Pass an event to the machine and do what it says."""
        sim = self.sim
        for action in self.machine.handle(event):
            match action:
                case HandOver(version, target, groups):
                    sim.ledger_gives(self.id, groups)
                    self.ship(version, target, groups)
                case TakeOwnership(version, groups, _):
                    sim.ledger_takes(self.id, groups)
                    self.mask = self.machine.owned_mask.tolist()
                    for group in groups:
                        for row in self.parked.pop(group, ()):
                            sim.process(self, row)
                    self.show_watermark()
                    sim.control_plane.report_owned(self.id, version, tuple(groups))
                case StartFlush() | Retired():
                    pass
        self.machine.check_invariants()
        self.mask = self.machine.owned_mask.tolist()
        sim.check_mask(self)
        self.finish_if_done()

    def ship(self, version, target, groups):
        """Hand over in one message, or group by group."""
        parts = [groups] if self.sim.rng.random() < 0.5 else [{g: e} for g, e in groups.items()]
        for part in parts:
            self.sim.later_delay(
                self.sim.control_plane.hand_over, target, HandoverReceived(version, part, str(self.id))
            )

    def finish_if_done(self):
        if self.finished or not self.machine.may_finish:
            return
        if self.parked:
            raise Violation(f"owner {self.id} ends with parked rows {self.parked}")
        self.finished = True
        self.sim.control_plane.report_finished(self.id)
