"""Replica of a partition in a broker: its decisions, its log, and who waits for changes of either."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.storage.partition_log import RECENT_BYTES_MAX, LogSettings, PartitionLog, sync
from log_broker.storage.places import DirectoryPlace, MemoryPlace, Place
from log_broker.storage.removal import REMOVER
from weir.clock import Clock, wall_ms
from weir.protocol.log.control import Report
from weir.protocol.log.entries import (
    BATCH_BYTES_MAX,
    EPOCH_START_PRODUCER,
    DamagedEntryError,
    Entry,
    Envelope,
    checksum,
    control_batch,
    entries_in,
    envelope_bytes,
    read_header,
)
from weir.protocol.log.producers import Verdict
from weir.protocol.log.replica import Replica

log = logging.getLogger("log_broker.partition")

#: What says which data a replica has.
DOCUMENT = "replica.json"
#: With less than this a replica that could not write still does not count as one that can.
_ROOM_BYTES = 16 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PartitionId(NamedTuple):
    """Names a partition; written ``topic/0``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True)
class PartitionSettings:
    """What a topic says of each of its partitions."""

    replicas: int = 3
    #: "memory", "os" or "fsync".
    durability: str = "os"
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def memory_bytes_max(self) -> int:
        """Bytes that segments may have with durability "memory"; 0: no bound.

        Twice what retention leaves, which removes only what is committed.
        """
        kept_bytes = self.log.retention_bytes + self.log.segment_bytes + BATCH_BYTES_MAX
        return 2 * kept_bytes if self.log.retention_bytes else 0


class Appended(NamedTuple):
    """What became of a producer's batch."""

    verdict: Verdict
    offset: int
    end_offset: int


class PartitionReplica:
    """Used by the one thread of the broker's event loop, and never by another one."""

    def __init__(
        self,
        broker_id: int,
        name: PartitionId,
        settings: PartitionSettings,
        directory: Path,
        clock: Clock,
    ) -> None:
        """Find what is stored; a replica without data, or with damaged data, is a new one.

        Args:
            broker_id: of this process.
            name: of the partition.
            settings: of the topic.
            directory: of this replica alone; not used with durability "memory".
            clock: source of times.
        """
        self.name = name
        self.settings = settings
        self._clock = clock
        self._broker_id = broker_id
        self._directory = directory
        #: Why the data began anew, if it did; "" else.
        self.trouble = ""
        #: Set when anything changed that somebody may wait for.
        self.listeners: set[asyncio.Event] = set()
        #: Of the stream from the latest leader; streams before it are refused.
        self.stream_number = 0
        #: Grows several times a second: at each of them followers hear how far all is committed.
        self.ticks = 0
        #: Why a write failed, until one succeeds and there is room again; "": none did. Another broker should lead.
        self.cannot_write = ""
        #: What a restart finds: no other promise may be told.
        self.stored_promise = 0
        #: Grows whenever entries were cut off, so that a sync that began before does not count.
        self._cuts = 0
        #: What was there before this replica began anew is out of the way: it may write.
        self._is_clear = True
        #: Something may have been set aside, by this process or one before it.
        self._has_aside = True
        self._recent_bytes_max = RECENT_BYTES_MAX
        #: Epoch and number of the set of replicas, of the newest record that was heard of.
        self._heard = 0, 0
        self._sync_wanted = asyncio.Event()
        self._place: Place
        self._recover()

    # -- beginning

    def _recover(self) -> None:
        self._place = (
            MemoryPlace(str(self.name), self.settings.memory_bytes_max)
            if self.settings.durability == "memory"
            else DirectoryPlace(self._directory)
        )
        self._place.check()
        self.log = self._new_log()
        try:
            document = self._place.load(DOCUMENT)
            if document is None:
                self._begin_anew("" if not self._place.bases() else f"{self._place.name} has no {DOCUMENT}")
                return
            has_rebooted = document["boot_id"] != boot_id()
            if has_rebooted and not document["is_clean"] and self.settings.durability != "fsync":
                raise LogDamagedError(f"{self._place.name}: the machine went down before all was on disk")
            self.log.recover(whole_may_be_torn=has_rebooted)
            if document["is_clean"] and self.log.end_offset < document["end_offset"]:
                raise LogDamagedError(
                    f"{self._place.name}: entries before {document['end_offset']} are absent"
                )
            if self.settings.durability == "fsync":
                # What a process wrote that was killed may not be on the disk, and counts from now on.
                self._sync_all()
        except LogDamagedError as error:
            self._begin_anew(str(error))
            return
        self.machine = Replica(self._broker_id, document["incarnation"], self.settings.replicas)
        self.machine.recovered(self.log.lineage.starts, self.log.end_offset, document["promised_epoch"])
        self._save()

    def _sync_all(self) -> None:
        try:
            self.log.sync_all()
        except OSError as error:
            raise LogWriteError(
                f"{self._place.name}: cannot be synced: {error.strerror}; mend the disk"
            ) from error

    def _new_log(self) -> PartitionLog:
        found = PartitionLog(self._place, self.settings.log, syncs=self.settings.durability == "fsync")
        found.recent_bytes_max = self._recent_bytes_max
        return found

    def keep_recent(self, bytes_max: int) -> None:
        """Keep at most so many bytes of the newest entries in memory, from the next one on."""
        self._recent_bytes_max = self.log.recent_bytes_max = bytes_max

    def _begin_anew(self, trouble: str) -> None:
        """Become a new replica: without vote until the leader has filled it and the controller has noted it.

        Raises:
            LogWriteError: the disk is full or broken. The replica is new and silent, and neither votes nor follows.
        """
        self.trouble = trouble
        if trouble:
            log.error("partition %s begins anew and is filled by others: %s", self.name, trouble)
        # First of all, whatever the disk does: nobody leads, or answers, with what is not trusted.
        self.log.close()
        self.log = self._new_log()
        self.machine = Replica(self._broker_id, secrets.randbits(63), self.settings.replicas)
        self.stored_promise = 0
        self._is_clear = not trouble
        self._save()

    def _clear(self) -> None:
        try:
            # The document first: a crash in between must not leave the name of the data without the data.
            self._place.set_aside(DOCUMENT)
        except OSError as error:
            raise LogWriteError(
                f"{self._place.name}: what was there cannot be moved away: {error.strerror}; mend the disk"
            ) from error
        self._is_clear = self._has_aside = True

    def drop_aside(self) -> None:
        """Remove what was there before this replica began anew: others have filled it, so that nobody needs it."""
        if not self._has_aside or not self._is_clear:
            return
        try:
            self._place.drop_aside()
            self._has_aside = False
        except OSError as error:
            log.warning("partition %s: what was set aside cannot be removed: %s", self.name, error)

    def damaged(self, error: LogDamagedError) -> None:
        """Begin anew, since something stored is not what was written; whoever has a stream here ends it."""
        self.stream_number += 1
        self._cuts += 1
        try:
            self._begin_anew(str(error))
        except LogWriteError as full:
            # New, and silent until its promise can be stored: a restart finds no name, and begins anew as well.
            log.error("partition %s: %s", self.name, full)
        self.changed()

    def _save(self, *, is_clean: bool = False) -> None:
        if not self._is_clear:
            self._clear()
        document = {
            "incarnation": self.machine.incarnation,
            "promised_epoch": self.machine.promised_epoch,
            "boot_id": boot_id(),
            "is_clean": is_clean,
            "end_offset": self.machine.end_offset,
        }
        self._place.save(DOCUMENT, document, is_synced=True)
        self.stored_promise = self.machine.promised_epoch

    def changed(self) -> None:
        """Wake all who wait."""
        for event in self.listeners:
            event.set()

    # -- promises and leadership

    def hears(self, epoch: int, config: int) -> bool:
        """Whether a record is as new as all that were heard of; else nothing that it says may be done.

        It comes from a controller that was replaced, and has not noticed it yet. The set of replicas also changes
        within an epoch: a leader that counted by an older one would acknowledge what no majority has.
        """
        if (epoch, config) < self._heard:
            return False
        self._heard = epoch, config
        return True

    def promise(self, epoch: int) -> None:
        """Refuse lower epochs from now on, also after a restart.

        Raises:
            LogWriteError: the promise is not stored; lower epochs are refused, and nobody may be told.
        """
        if self.machine.promise(epoch):
            self.changed()
        if self.stored_promise < self.machine.promised_epoch:
            self._save()

    def lead(self, epoch: int, members: dict[int, int], replicas: int, config: int) -> None:
        """Begin an epoch with its first entry.

        Args:
            epoch: was promised.
            members: who votes and counts, by the incarnation of the data.
            replicas: how many there are to be.
            config: number of this set of replicas.

        Raises:
            LogWriteError: the entry cannot be written; nobody leads then.
        """
        self.machine.lead(epoch, members, replicas, config)
        try:
            self._append(control_batch(EPOCH_START_PRODUCER, 0))
        except LogWriteError:
            self.machine.leading_epoch = 0
            raise
        log.info(
            "partition %s: leading epoch %d from offset %d", self.name, epoch, self.machine.end_offset - 1
        )

    def reconfigure(self, members: dict[int, int], replicas: int, config: int) -> None:
        """Count by another set of replicas, with an entry that shows once it is committed that all is on a majority.

        Raises:
            LogWriteError: the entry cannot be written; the next one shows it.
        """
        self.machine.reconfigure(members, replicas, config)
        self.confirm()

    def report(self) -> Report:
        """Return what the controller is told; with it this replica votes, if its promise is stored."""
        machine = self.machine
        machine.vote(self.stored_promise)
        return Report(
            machine.incarnation,
            self.stored_promise,
            machine.lineage.last_epoch,
            machine.end_offset,
            machine.leading_epoch,
            machine.caught_up(),
            machine.commit_offset,
            machine.settled_config,
            bool(self.cannot_write),
        )

    # -- writing

    def append_batch(self, batch: bytes, crc: int) -> Appended:
        """Append what a producer sent, if it is new; the caller leads, and checked that ``crc`` holds.

        Raises:
            LogWriteError: it cannot be written; nothing is changed.
            DamagedEntryError: it is no batch.
        """
        header = read_header(batch)
        verdict, offset = self.log.producers.judge(header)
        if verdict is Verdict.APPEND:
            offset = self._append(batch, crc)
        if verdict is Verdict.WRITTEN:
            # Wherever it is, it is before the end.
            return Appended(verdict, offset, self.machine.end_offset)
        return Appended(verdict, offset, offset + header.record_count)

    def take_over_producer(self, producer_id: int, last_epoch: int = 0) -> tuple[int, int]:
        """Note a producer's next epoch in the log; returns it, and the offset behind the note.

        Args:
            producer_id: of the producer.
            last_epoch: its own last one. Batches of it may still come that nobody wrote yet: if their epoch was given
                once more, they would be taken for later ones with their numbers, and these for known.
        """
        epoch = max(self.log.producers.epoch_of(producer_id), last_epoch) + 1
        offset = self._append(control_batch(producer_id, epoch))
        return epoch, offset + 1

    def confirm(self) -> int:
        """Write an entry without meaning; once all before the offset that is returned is committed, this broker led.

        A leader that was replaced, and has not heard of it, may not refuse what its successor would take.
        """
        return self._append(control_batch(EPOCH_START_PRODUCER, 0)) + 1

    def _append(self, batch: bytes, crc: int | None = None) -> int:
        machine = self.machine
        offset = machine.end_offset
        crc = checksum(batch) if crc is None else crc
        # A clock that was set back must not let the times in the log go back: readers look them up by halves.
        now_ms = max(wall_ms(self._clock), self.log.last_append_ms)
        head = envelope_bytes(len(batch), machine.leading_epoch, offset, now_ms, crc)
        entry = Entry(Envelope(len(batch), machine.leading_epoch, offset, now_ms, crc), read_header(batch), 0)
        self._write([head, batch], [entry])
        machine.appended(machine.leading_epoch, offset, entry.end_offset)
        self._settle()
        return offset

    def _write(self, parts: list[bytes], entries: list[Entry]) -> None:
        if self._place.bytes_max:
            # Between two ticks more may come than there is room for.
            self.log.retain(wall_ms(self._clock), self.machine.commit_offset)
        try:
            self.log.append(parts, entries)
        except LogWriteError as error:
            # Another leader would have no more memory than this one.
            self.cannot_write = "" if self._place.bytes_max else str(error)
            # A leader that fills it has a majority, which needs nothing of what was here before.
            self.drop_aside()
            raise
        # A small entry finds room where a batch does not.
        if self.cannot_write and self._place.room_bytes() >= _ROOM_BYTES:
            self.cannot_write = ""

    def append_entries(self, chunk: bytes) -> None:
        """Append what the leader sent, checked.

        Raises:
            LogWriteError: it cannot be written; nothing is changed.
            DamagedEntryError: these are no entries, or not those that the leader sent.
            InvalidTransitionError: they do not follow the end of the log.
        """
        entries = list(entries_in(chunk))
        machine = self.machine
        for entry in entries[:1]:
            machine.check_follows(entry.envelope.offset)
        for before, entry in pairwise(entries):
            if entry.envelope.offset != before.end_offset:
                raise DamagedEntryError(
                    f"the entry at offset {entry.envelope.offset} came behind one that ends at {before.end_offset}"
                )
        self._write([chunk], entries)
        for entry in entries:
            machine.appended(entry.envelope.epoch, entry.envelope.offset, entry.end_offset)
        self._settle()

    def _settle(self) -> None:
        if self.settings.durability == "fsync":
            self._sync_wanted.set()
        else:
            self.machine.made_durable(self.machine.end_offset)
        self.changed()

    async def sync_forever(self) -> None:
        """Sync whatever has come since the last sync, again and again; one sync is for all of it."""
        loop = asyncio.get_running_loop()
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            end_offset, cuts = self.machine.end_offset, self._cuts
            try:
                await loop.run_in_executor(None, sync, self.log.to_sync())
            except (OSError, LogDamagedError, LogWriteError) as error:
                # The kernel has dropped what it could not write, and says so only once; or the file is gone.
                why = error.strerror if isinstance(error, OSError) else error
                self.damaged(LogDamagedError(f"{self._place.name}: cannot be synced: {why}"))
                continue
            if cuts == self._cuts:
                self.machine.made_durable(end_offset)
                self.changed()

    def cut(self, offset: int) -> None:
        """Cut off what the leader does not have.

        Raises:
            InvalidTransitionError: something committed would be lost; nothing is changed.
            LogDamagedError: the disk has done a part of it.
        """
        if offset < self.machine.end_offset:
            log.info(
                "partition %s: cut from %d to %d, as its leader has it",
                self.name,
                self.machine.end_offset,
                offset,
            )
            self.machine.cut(offset)
            self._cuts += 1
            try:
                self.log.truncate(offset)
            except (OSError, LogWriteError) as error:
                raise LogDamagedError(f"{self._place.name}: cannot be cut at {offset}: {error}") from error

    def begin_at(self, offset: int, start: dict[str, list[list[object]]]) -> None:
        """Forget everything and begin where the leader's log does.

        Raises:
            LogDamagedError: the disk has done a part of it.
        """
        self._cuts += 1
        try:
            self.log.begin_at(offset, start)
        except OSError as error:
            raise LogDamagedError(f"{self._place.name}: cannot be emptied: {error}") from error
        self.machine.began_at(self.log.lineage.starts, offset)

    def tick(self) -> None:
        """Remove old segments, and let followers hear what is committed."""
        self.ticks += 1
        self.changed()
        try:
            self.log.retain(wall_ms(self._clock), self.machine.commit_offset)
        except OSError as error:
            # Of one partition: the others go on. What is left of the segment goes with the folder.
            log.error("partition %s: an old segment cannot be removed: %s", self.name, error)

    def remove(self) -> None:
        """End, and delete all that is stored: this broker is no replica any more."""
        self.log.close()
        if self.settings.durability != "memory":
            REMOVER.remove(self._directory)

    def close(self) -> None:
        """End in order: after this the data counts as whole, also if the machine goes down."""
        if self.settings.durability != "memory":
            self._sync_all()
            self._save(is_clean=True)
        self.log.close()


def boot_id() -> str:
    """What differs after the machine went down; "" where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
