"""The controller's record: stored before anybody hears of it, whatever the place does meanwhile."""

import asyncio

import pytest

from log_broker import record as record_module
from log_broker.errors import LogDamagedError
from log_broker.record import ControllerRecord, RecordSaver
from weir.errors import CheckpointError, SupersededError
from weir.protocol.log.control import PartitionRecord

RECORD = ControllerRecord(
    {"wal": {"topic": "wal", "partitions": 1}}, frozenset({2}), [PartitionRecord("wal", 0, [1, 3], epoch=7)]
)


class Place:
    """A keeper whose next calls fail as told."""

    place = "the record"

    def __init__(self, *failures):
        self.failures = list(failures)
        self.saved = []

    def save(self, data):
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.saved.append(data)


async def _with_saver(place, work):
    told = []
    saver = RecordSaver(place, told.append)
    running = asyncio.create_task(saver.run())
    try:
        return await work(saver, told, running)
    finally:
        running.cancel()


def test_a_record_is_read_as_it_was_written_and_damage_is_noticed():
    data = RECORD.to_bytes()
    assert ControllerRecord.from_bytes(data, "x") == RECORD
    assert ControllerRecord.from_bytes(None, "x") == ControllerRecord({}, frozenset(), [])
    with pytest.raises(LogDamagedError, match="here has another checksum"):
        ControllerRecord.from_bytes(data.replace(b"wal", b"lal"), "here")


def test_what_cannot_be_stored_is_told_to_nobody_and_tried_again(monkeypatch):
    monkeypatch.setattr(record_module, "_AGAIN_S", 0.01)
    monkeypatch.setattr(record_module, "_PATIENCE_S", 0.3)
    full = CheckpointError("cannot write x: No space left on device")
    place = Place(*[full] * 1000)

    async def work(saver, told, _):
        saver.want(RECORD)
        assert await saver.until_stored() == (
            "not stored yet, and tried again: cannot write x: No space left on device"
        )
        assert told == []
        place.failures.clear()
        # Later decisions go with it.
        RECORD.partitions[0].leader = 3
        saver.want(RECORD)
        assert await saver.until_stored() == ""
        assert told[-1].partitions[0].leader == 3
        assert told[-1].partitions[0] is not RECORD.partitions[0]

    try:
        asyncio.run(_with_saver(place, work))
    finally:
        RECORD.partitions[0].leader = 0


def test_another_controller_ends_this_one():
    async def work(saver, told, running):
        saver.want(RECORD)
        with pytest.raises(SupersededError):
            await running
        assert told == []

    asyncio.run(_with_saver(Place(SupersededError("another controller leads")), work))
