"""A stage with HASH input that is rescaled at random, in virtual time, around the real machines.

Replay a seed with its whole course: ``python -m tests.weir.protocol.rescale_simulator SEED [BROKEN]``.
"""

import heapq
import random
import sys

from tests.weir.protocol.rescale_control_plane import STAGE, ControlPlane
from tests.weir.protocol.rescale_parties import GROUPS, Owner, Upstream, Violation, group_of
from weir.errors import WeirError
from weir.protocol.rescale_log import RescaleLog
from weir.protocol.routing import initial_table
from weir.types import SubtaskId

STEPS_MAX = 5_000


class Simulation:
    """One run; ``run`` raises :class:`Violation` or a ``WeirError`` if the protocol fails."""

    def __init__(self, seed, *, broken="", loss=None, print_line=None):
        """``loss``: None kills somebody in one run of three; (step, party) kills that party at that step."""
        self.rng, self.broken, self.print_line = random.Random(seed), broken, print_line
        rng = self.rng
        self.now, self.steps, self.queue, self.order = 0.0, 0, [], 0
        self.scales, self.arrivals, self.control_scale = {}, {}, rng.choice([1, 5, 20])
        self.table = initial_table(STAGE, rng.randint(1, 3), GROUPS)
        self.ledger = [(owner, 1) for owner in self.table.groups]
        self.rows_emitted = self.rows_processed = self.rows_parked = 0
        self.last_seqs = {}
        self.log, self.phases = RescaleLog(), []
        self.control_plane = ControlPlane(self)
        self.job_failed, self.killed, self.finished = "", None, set()
        self.upstreams = []
        self.upstreams = [Upstream(self, i) for i in range(rng.randint(1, 3))]
        inputs = [upstream.id for upstream in self.upstreams]
        self.owners = {i: Owner(self, i, self.table, inputs) for i in self.table.subtasks}
        self.loss = loss
        if loss is None and rng.random() < 1 / 3:
            self.loss = (rng.randint(1, 300), None)
        self.requests_left = rng.randint(1, 4)
        self.later(rng.random() * 40, self.control_plane.request)
        self.joining = {}
        self.later(rng.random() * 80, self.join)

    # --- time and messages ----------------------------------------------------------------------------------

    def later(self, delay, call, *args):
        self.at(self.now + delay, call, *args)

    def at(self, time, call, *args):
        self.order += 1
        heapq.heappush(self.queue, (time, self.order, call, args))

    def later_delay(self, call, *args):
        """Beside the data: messages overtake each other."""
        self.later(self.rng.random() * self.control_scale, call, *args)

    def send(self, source, index, element):
        """In-band: in order on its channel."""
        channel = (source, index)
        scale = self.scales.setdefault(channel, self.rng.choice([1, 5, 25]))
        arrival = max(self.now + self.rng.random() * scale, self.arrivals.get(channel, 0.0))
        self.arrivals[channel] = arrival
        self.at(arrival, self.receive, source, index, element)

    def receive(self, source, index, element):
        self.owners[index].receive(source, element)

    def send_held_late(self, source, held):
        for index, rows in held.items():
            self.send(source, index, ("rows", rows))

    def run(self):
        while self.queue and not self.job_failed:
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise Violation("the run does not end")
            if self.loss is not None and self.steps == self.loss[0]:
                self.lose()
            self.now, _, call, args = heapq.heappop(self.queue)
            if self.print_line is not None:
                who = getattr(getattr(call, "__self__", None), "id", "")
                shown = ", ".join(getattr(item, "__name__", None) or str(item) for item in args)
                self.print_line(f"{self.steps:4} {self.now:7.2f} {who} {call.__name__}: {shown}")
            call(*args)
        self.check_end()
        return self

    # --- truth ----------------------------------------------------------------------------------------------

    def process(self, owner, row):
        source, key, seq, _ = row
        if self.ledger[group_of(key)][0] != owner.id.subtask_index:
            raise Violation(f"{owner.id} processes {row}; the owner is {self.ledger[group_of(key)]}")
        before = self.last_seqs.get((source, key), -1)
        if seq != before + 1:
            raise Violation(f"{owner.id} processes {row} after sequence number {before}")
        if row[3] <= owner.shown_ms:
            raise Violation(f"{owner.id} processes {row} behind its watermark {owner.shown_ms}")
        self.last_seqs[source, key] = seq
        self.rows_processed += 1

    def ledger_gives(self, subtask, groups):
        for group, epoch in groups.items():
            if self.ledger[group] != (subtask.subtask_index, epoch - 1):
                raise Violation(f"{subtask} gives away {group}: {epoch}; the owner is {self.ledger[group]}")
            self.ledger[group] = (None, epoch)

    def ledger_takes(self, subtask, groups):
        for group, epoch in groups.items():
            if self.ledger[group] != (None, epoch):
                raise Violation(f"{subtask} takes {group}: {epoch}; the owner is {self.ledger[group]}")
            self.ledger[group] = (subtask.subtask_index, epoch)

    def check_mask(self, owner):
        index = owner.id.subtask_index
        if owner.mask != [entry[0] == index for entry in self.ledger]:
            raise Violation(f"{owner.id} owns {owner.mask}, but the owners are {self.ledger}")

    def check_end(self):
        if self.job_failed:
            if self.killed is None:
                raise Violation(f"the job failed, but nobody was lost: {self.job_failed}")
            return
        if self.log.current is not None:
            raise Violation(f"stuck: {self.log.current.to_dict()}")
        running = [owner.id for owner in self.owners_in_force if not owner.finished]
        if running or self.rows_processed != self.rows_emitted:
            raise Violation(
                f"running: {running}; {self.rows_processed} of {self.rows_emitted} rows processed"
            )
        if any(owner not in self.table.subtasks for owner, _ in self.ledger):
            raise Violation(f"groups without an owner: {self.ledger}")
        if [entry for entry in self.ledger] != list(
            zip(self.table.groups, self.table.owner_epochs, strict=True)
        ):
            raise Violation(f"the owners are {self.ledger}, but the table says {self.table}")

    # --- a further upstream subtask --------------------------------------------------------------------------

    def join(self):
        """The stage before was scaled out: every owner gets one more input, and then it starts."""
        if self.log.current is not None or any(not o.alive or o.finished for o in self.owners_in_force):
            return
        self.joining = {owner: False for owner in self.owners_in_force}
        for owner in self.owners_in_force:
            self.later_delay(self.add_input, owner, SubtaskId(0, len(self.upstreams)))

    def add_input(self, owner, source):
        owner.add_input(source)
        self.joining[owner] = True
        if not all(self.joining.values()):
            return
        owners, self.joining = self.joining, {}
        if any(source not in owner.inputs for owner in owners):
            for owner in owners:
                owner.end_input(source)
            return
        self.upstreams.append(Upstream(self, source.subtask_index))

    @property
    def owners_in_force(self):
        return [self.owners[index] for index in self.table.subtasks]

    # --- losses ---------------------------------------------------------------------------------------------

    @property
    def parties(self):
        owners = [o for _, o in sorted(self.owners.items()) if o.alive]
        return [u for u in self.upstreams if u.alive] + owners

    def lose(self):
        parties = self.parties
        number = self.loss[1]
        if number is not None and number >= len(parties):
            return
        party = self.rng.choice(parties) if number is None else parties[number]
        party.alive, self.killed = False, party
        had_finished = party.finished if isinstance(party, Owner) else party.ended
        self.later_delay(self.control_plane.party_lost, party, had_finished)


def outcome(seed, **options):
    """Run a seed; gives the simulation, or raises with how to replay it."""
    try:
        return Simulation(seed, **options).run()
    except (Violation, WeirError, AssertionError, KeyError) as error:
        broken = f' "{options["broken"]}"' if options.get("broken") else ""
        replay = f"python -m tests.weir.protocol.rescale_simulator {seed}{broken}"
        raise Violation(f"seed {seed} ({options}): {error!r}; replay: {replay}") from error


if __name__ == "__main__":
    done = Simulation(int(sys.argv[1]), broken=" ".join(sys.argv[2:]), print_line=print).run()
    print(
        f"fine: {done.rows_processed} rows, {[phase.value for phase in done.phases]}, {done.job_failed or 'no loss'}"
    )
