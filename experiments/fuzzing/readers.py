"""Entries that are functions: what reads files, frames and settings. Each returns, or raises an error of Weir."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa

from control_plane.record.job_record import JobRecord
from experiments.fuzzing.inputs import any_json, damaged, fill, json_bytes
from task_manager.exchange.frames import FrameDecoder, read_head, read_replies
from task_manager.exchange.shared_memory import ReceivedMemory, make_memory
from weir.checkpoints.digests import sealed, unsealed
from weir.config import load_config
from weir.errors import WeirError
from weir.protocol.checkpoints.manifest import (
    FileRef,
    GroupPlace,
    Manifest,
    StoreImage,
    SubtaskPart,
    manifest_from_json,
    manifest_to_json,
    part_from_json,
    part_to_json,
)
from weir.protocol.log.entries import entries_in, envelope_bytes, read_header
from weir.protocol.queries import QueryError, parse_question, question_from_json
from weir.protocol.routing import RoutingTable
from weir.rpc import data_pb2
from weir.rpc.log_wire import produce_request, split_blob
from weir.rpc.wire import parse_address
from weir.types import SubtaskId

#: Tries one input; raises what the entry does.
Try = Callable[[random.Random], object]
#: Of the memory in which rows of a peer lie.
_SHARED_BYTES = 1 << 20
#: What an entry may raise.
CLEAR = (WeirError, QueryError)


def readers(directory: Path) -> dict[str, Try]:
    """Return the entries by name; ``directory``: for files of settings."""
    manifest = manifest_to_json(_manifest())
    part = part_to_json(_manifest().parts[0])
    settings = (
        json.loads(Path("config.json").read_text()) if Path("config.json").exists() else {"taskManager": {}}
    )
    record = _record()
    schema, body = _batch()

    def config(rng: random.Random) -> object:
        path = directory / "config.json"
        path.write_bytes(json_bytes(rng, settings))
        return load_config(path, {}, {})

    def overrides(rng: random.Random) -> object:
        dotted = rng.choice(
            ("taskManager.batch_size", "controlPlane.host", "security.directory", "x", "a.b.c")
        )
        return load_config(
            None, {f"WEIR_{rng.choice('ABC')}": "1"} if rng.random() < 0.1 else {}, {dotted: _text(rng)}
        )

    def frames(rng: random.Random) -> object:
        decoder = FrameDecoder()
        head = data_pb2.ChannelFrame(batch=data_pb2.BatchFrame(arrow_schema=schema), channel_number=1)
        content = head.SerializeToString()
        if rng.random() < 0.5:
            content = fill(rng, data_pb2.ChannelFrame()).SerializeToString()
        elif rng.random() < 0.5:
            content = damaged(rng, content)
        frame = read_head(content)
        return decoder.decode(frame, pa.py_buffer(damaged(rng, body)))

    return {
        "manifest": lambda rng: manifest_from_json(_loads(json_bytes(rng, manifest))),
        "part of a checkpoint": lambda rng: part_from_json(_loads(json_bytes(rng, part))),
        "sealed document": lambda rng: unsealed(damaged(rng, sealed(b'{"a":1}'))),
        "record": lambda rng: JobRecord.from_bytes(json_bytes(rng, record), "the record"),
        "settings": config,
        "overridden settings": overrides,
        "frames of rows": frames,
        "rows in shared memory": _shared_memory(schema, body),
        "replies of links": lambda rng: read_replies(damaged(rng, b"\x0a\x04\x10\x01\x18\x02")),
        "entries of the log": _entries,
        "batches of the log": lambda rng: split_blob(damaged(rng, produce_request(7, b"head", b"body" * 9))),
        "questions": _question,
        "questions between processes": lambda rng: question_from_json(any_json(rng)),
        "addresses": lambda rng: parse_address(_text(rng)),
    }


def _shared_memory(schema: bytes, body: bytes) -> Try:
    """Rows that a peer has put into memory that both processes share: damaged, or said to be elsewhere."""
    descriptor = make_memory(_SHARED_BYTES)
    if descriptor is None:
        return lambda rng: None
    memory = ReceivedMemory(descriptor)

    def work(rng: random.Random) -> object:
        content = damaged(rng, body)
        at, size_bytes = rng.randrange(_SHARED_BYTES - len(content)), len(content)
        os.pwrite(descriptor, content, at)
        if rng.random() < 0.2:
            at, size_bytes = rng.choice((at, rng.randrange(2**64))), rng.choice((0, 1, rng.randrange(2**64)))
        part = memory.part(at, size_bytes)
        return FrameDecoder().decode_batch(part, schema, is_shared=True)

    return work


def clear(work: Callable[[], object]) -> None:
    """Call, and take an error of Weir for an answer."""
    try:
        work()
    except CLEAR as error:
        text = str(error)
        if not text or ("\n" in text and len(text) > 10_000):
            raise AssertionError(f"no clear error: {text[:200]!r}") from error


def _loads(content: bytes) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None


def _text(rng: random.Random) -> str:
    return damaged(rng, rng.choice((b"127.0.0.1:8008", b"[::1]:1", b"x:y:z", b"1000", b"true"))).decode(
        errors="replace"
    )


def _question(rng: random.Random) -> object:
    names = ("consistency", "limit", "from", "to", "prefix", "continuation", "count", "as_of", "reverse", "x")
    given = {name: _text(rng) for name in rng.sample(names, rng.randint(0, 3))}
    return parse_question("step", "state", None if rng.random() < 0.5 else _text(rng), given)


def _entries(rng: random.Random) -> object:
    batch = rng.randbytes(64)
    content = damaged(rng, envelope_bytes(len(batch), 3, 17, 5, 9) + batch)
    if rng.random() < 0.5:
        return read_header(damaged(rng, batch))
    return list(entries_in(content))


def _manifest() -> Manifest:
    image = StoreImage("image-1", {"1.sst": FileRef("files/000001/a.sst", 5, "xxh:1")})
    part = SubtaskPart(
        SubtaskId(1, 0), {0: GroupPlace("image-1")}, (image,), operators={"source": {"row": 17}}, new_bytes=5
    )
    return Manifest(
        checkpoint_id=3,
        job_name="job",
        fingerprint="f00d",
        generation=1,
        created_ms=1,
        job_start_us=2,
        max_parallelism=2,
        stages={1: (0,)},
        routing={1: RoutingTable(1, 1, (0,), (0, 0), (1, 1))},
        parts=(part,),
        operator_names={1: ("count",)},
        state_ids={"count": 3},
    )


def _record() -> object:
    routing = {1: RoutingTable(1, 1, (0,), (0, 0), (1, 1))}
    placement = {SubtaskId(1, 0): "127.0.0.1:8018"}
    record = JobRecord("job-1", "f00d", 1, 1, False, False, True, {1: (0,)}, routing, placement)
    return json.loads(record.to_bytes())


def _batch() -> tuple[bytes, bytes]:
    batch = pa.record_batch({"id": [1, 2, 3], "word": ["a", "bb", None], "many": [[1], [], [2, 3]]})
    return batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes()
