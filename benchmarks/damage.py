"""Flips, cuts and swaps in the files of a checkpoint: what is restored is right, or refused with the file's name."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.command_line import Report
from benchmarks.results import Bar, BenchmarkResult
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.file_checks import FileChecks
from weir.checkpoints.rows import load_rows, save_rows
from weir.config.stores import RocksDbConfig
from weir.errors import WeirError
from weir.protocol.checkpoints.manifest import GroupPlace, Manifest, SubtaskPart
from weir.protocol.routing import RoutingTable
from weir.rows.records import InputRows
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images
from weir.state.layout import encode_key
from weir.types import SubtaskId

BARS = (Bar("wrong", "at most", 0),)
JOB = "damaged"
TABLES, ENTRIES = 4, 400
#: What is done to a file. The last one exchanges it for another of the checkpoint.
DAMAGES = ("flip", "cut", "zero", "swap")


def make_checkpoint(directory: Path) -> Path:
    """A checkpoint of a RocksDB store of several tables, with positions of a source and rows under way.

    Returns:
        The checkpoint store's directory.
    """
    place = directory / "checkpoints"
    store = CheckpointStore.open(str(place), JOB)
    images = Images(store, directory / "made", RocksDbConfig())
    backend = images.open_main(None)
    for table in range(TABLES):
        numbers = range(table, TABLES * ENTRIES, TABLES)
        backend.write([(encode_key(0, 1, b"key-%06d" % n), b"value-%06d" % n * 5) for n in numbers])
        backend.flush()
    image, _ = ImagePublisher(store, backend, directory / "made", "store-1").take(1).publish()
    under_way = pa.record_batch({"n": pa.array(range(1_000), pa.int64())})
    part = SubtaskPart(
        SubtaskId(1, 0),
        {0: GroupPlace(image.image_id)},
        (image,),
        rows=save_rows(store, 1, "rows", [InputRows(0, under_way)]),
        operators={"source": {"offset": 123_456_789, "file": "events.jsonl"}},
    )
    store.write_manifest(
        Manifest(
            checkpoint_id=1,
            job_name=JOB,
            fingerprint="f00d",
            generation=1,
            created_ms=1,
            job_start_us=2,
            max_parallelism=1,
            stages={1: (0,)},
            routing={1: RoutingTable(1, 1, (0,), (0,), (1,))},
            parts=(part,),
            operator_names={1: ("counted",)},
            state_ids={"counted": 1},
        )
    )
    images.close()
    backend.close()
    return place


def restored(place: Path, directory: Path, *, at_once: bool) -> tuple[Any, ...]:
    """All that a job would go on from: what the manifest says, the entries of the store, and rows under way.

    Args:
        place: the checkpoint store.
        directory: of the store that is opened.
        at_once: files are read before the store is opened, else beside it.

    Raises:
        WeirError: the checkpoint is refused.
    """
    store = CheckpointStore.open(str(place), JOB)
    manifest = store.latest()
    assert manifest is not None
    (part,) = manifest.parts
    rows = [(item.input_index, item.batch.to_pydict()) for item in load_rows(store, part.rows)]
    images = Images(store, directory, RocksDbConfig())
    if not at_once:
        images.checks = FileChecks(store.location, directory, at_once_bytes=0)
    try:
        backend = images.open_main(part.images[0])
        try:
            # Before the next checkpoint counts.
            images.checks.settle()
            entries = list(backend.scan())
        finally:
            backend.close()
    finally:
        images.close()
    image_files = sorted((name, file.size_bytes) for name, file in part.images[0].files.items())
    # The store's path is no part of what it says.
    return manifest, entries, rows, image_files


def damage(path: Path, others: list[Path], rng: random.Random) -> set[Path]:
    """Do something to a file, which other checkpoints may be linked to; returns the files that are not as they were."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(DAMAGES)
    if kind == "swap" and others:
        other = rng.choice(others)
        theirs = other.read_bytes()
        _replace(other, bytes(data))
        _replace(path, theirs)
        return set() if theirs == data else {path, other}
    before = bytes(data)
    if kind == "cut" or not data:
        del data[rng.randrange(len(data)) if data else 0 :]
    elif kind == "zero":
        start = rng.randrange(len(data))
        stop = min(len(data), start + rng.choice([1, 16, 512, 4096]))
        data[start:stop] = bytes(stop - start)
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    _replace(path, bytes(data))
    return set() if bytes(data) == before else {path}


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def outcomes(cases: int, seed: int, report: Report | None = None) -> Iterator[tuple[str, str]]:
    """What became of each case, ``right``, ``refused`` or ``wrong``, and in words what was done and seen."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="weir-damage-") as folder:
        root = Path(folder)
        place = make_checkpoint(root)
        expected = restored(place, root / "whole", at_once=True)
        for case in range(cases):
            if report is not None and case % 100 == 0:
                report(f"{case} of {cases}", case / cases)
            copy, opened = root / f"case-{case}", root / f"store-{case}"
            shutil.copytree(place, copy)
            files = sorted(path for path in copy.rglob("*") if path.is_file())
            path = rng.choice(files)
            changed = damage(path, [other for other in files if other != path], rng)
            about = f"case {case}: {path.relative_to(copy)}: "
            try:
                found = restored(copy, opened, at_once=rng.random() < 0.5)
                yield ("right" if found == expected else "wrong"), about + "other content"
            except WeirError as error:
                names = [str(each.relative_to(copy / JOB)) for each in changed]
                is_named = any(name in str(error) for name in names)
                yield ("refused" if is_named else "wrong"), about + str(error)
            shutil.rmtree(copy)
            shutil.rmtree(opened, ignore_errors=True)


def run(report: Report, cases: int, seed: int) -> BenchmarkResult:
    """Damage a checkpoint so many times; called by the command ``damage``."""
    counts, wrong = Counter[str](), []
    for outcome, about in outcomes(cases, seed, report):
        counts[outcome] += 1
        if outcome == "wrong":
            wrong.append(about)
    figures: dict[str, Any] = {
        "cases": cases,
        **{outcome: counts[outcome] for outcome in ("right", "refused", "wrong")},
        "wrong_cases": {str(n): about for n, about in enumerate(wrong[:20])},
    }
    return BenchmarkResult("damage", {"cases": cases, "seed": seed}, [figures], BARS)
