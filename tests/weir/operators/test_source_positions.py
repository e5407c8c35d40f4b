"""Rows before a cut and rows after starting again from its snapshot are all rows, once each, whatever the cut."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.registry import create_reader
from weir.operators.sources.files import splits
from weir.operators.sources.lines import line_source
from weir.rows.records import INGEST_TIME_COLUMN
from weir.specs import CsvSpec, JsonLinesSpec, ParquetSpec
from weir.specs.told_form import told_form
from weir.testing.manual_clock import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
#: Small enough that lines beyond it are passed over without being held.
LINE_BYTES_MAX = 3000
START_US = 1_700_000_000_000_000


#: Runs of the test.
OPEN = []


@pytest.fixture(autouse=True)
def _close_runs():
    yield
    while OPEN:
        OPEN.pop().close()


class Run:
    """All subtasks of a source in one process, with what they gave, per subtask."""

    def __init__(
        self,
        tmp_path,
        spec,
        parallelism,
        restored=None,
        start_us=START_US,
        clock=None,
        batch_size=50,
        generation=1,
    ):
        self.readers, self.letters, self.rows = [], [], []
        OPEN.append(self)
        self.spec, self.clock = spec, clock or ManualClock(start_us)
        for index in range(parallelism):
            letters = DeadLetterFile(tmp_path / "dead", "job", "source", index)
            reader = create_reader(spec)
            self.readers.append(reader)
            self.letters.append(letters)
            reader.open(
                OperatorContext(
                    "job",
                    "source",
                    0,
                    index,
                    parallelism,
                    batch_size=batch_size,
                    job_start_us=start_us,
                    clock=self.clock,
                    dead_letters=letters,
                    restored=restored or {},
                    generation=generation,
                    subtask_indices=tuple(range(parallelism)),
                )
            )
            self.rows.append([])

    def poll(self, index, rows_max):
        poll = self.readers[index].poll(rows_max)
        if poll.batch is not None:
            self.rows[index] += poll.batch.to_pylist()
        return poll

    def read(self, random_, polls_max=1 << 30):
        """Polls of random size of subtasks at random, until there were so many or all have ended."""
        live = list(range(len(self.readers)))
        while live and polls_max:
            polls_max -= 1
            index = random_.choice(live)
            poll = self.poll(index, random_.choice([1, 2, 3, 7, 50]))
            if poll.finished:
                live.remove(index)
            elif poll.batch is None:
                self.clock.advance_ms(1)
        return self

    def close(self):
        for closable in (*self.readers, *self.letters):
            closable.close()

    def stop(self):
        """The snapshot, as it comes back from a manifest."""
        snapshots = {index: reader.snapshot() for index, reader in enumerate(self.readers)}
        self.close()
        return {index: json.loads(json.dumps(snapshot)) for index, snapshot in snapshots.items()}

    def ids(self):
        return [[row["id"] for row in rows] for rows in self.rows]


def flat(parts):
    return [item for part in parts for item in part]


SUFFIXES = ["", "", ".gz", ".zst", ".bz2", ".lz4"]


def write_file(path, raw):
    """Compressed as the name ends, maybe in two streams, one after the other."""
    codec = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}.get(path.suffix)
    with pa.OSFile(str(path), "wb") as file:
        for part in (raw[: len(raw) // 3], raw[len(raw) // 3 :]) if codec else (raw,):
            out = pa.BufferOutputStream()
            with pa.CompressedOutputStream(out, codec) if codec else out as stream:
                stream.write(bytes(part))
            file.write(out.getvalue())


def write_lines(directory, random_, files, lines):
    """Files of good, bad, blank and huge lines; gives good ids and (file, position) of bad lines."""
    good, bad, number = [], [], 0
    directory.mkdir()
    for file in range(files):
        raw = bytearray(random_.choice([b"", b"\xef\xbb\xbf"]))
        path = directory / (f"part-{file}.jsonl" + random_.choice(SUFFIXES))
        for _ in range(random_.randrange(lines)):
            kind = random_.random()
            if kind < 0.1:
                raw += random_.choice([b"", b"  \t", b"\r"])
            elif kind < 0.25:
                bad.append((str(path), len(raw)))
                raw += random_.choice([b"{}", b"nonsense", b'{"id": "1"}', b"x" * 400, b"[" * 9])
            elif kind < 0.27:
                bad.append((str(path), len(raw)))
                raw += b'{"id": 1, "text": "' + b"y" * random_.choice([4000, 40_000, 200_000]) + b'"}'
            else:
                text = "z" * random_.choice([0, 3, 60]) + random_.choice(["", '"é\\', "\U0001f600"])
                raw += json.dumps({"id": number, "text": text}, ensure_ascii=random_.random() < 0.5).encode()
                good.append(number)
                number += 1
            raw += random_.choice([b"\n", b"\n", b"\r\n"])
        if raw.endswith(b"\n") and random_.random() < 0.5:
            del raw[-1]
        write_file(path, raw)
    # A mark alone, or an input without lines, is no case for the positions.
    return good, bad


def known_letters(tmp_path):
    entries = [
        json.loads(line)
        for path in (tmp_path / "dead" / "job").glob("*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    return sorted((entry["source"], entry["position"]) for entry in entries)


@pytest.fixture
def tiny_splits(monkeypatch):
    """Splits and buffers so small that cuts fall everywhere."""
    monkeypatch.setattr(splits, "SPLIT_BYTES_MIN", 700)
    monkeypatch.setattr(line_source, "BUFFER_BYTES", 5000)
    monkeypatch.setattr(line_source, "PACED_BUFFER_BYTES", 5000)


@pytest.mark.parametrize("seed", range(cases(15)))
def test_json_lines_go_on_exactly_behind_the_last_row(tmp_path, tiny_splits, seed):
    random_ = random.Random(seed)
    good, bad = write_lines(tmp_path / "in", random_, random_.choice([1, 3]), 200)
    spec = JsonLinesSpec(
        schema=SCHEMA,
        path=str(tmp_path / "in"),
        line_bytes_max=LINE_BYTES_MAX,
        rate=random_.choice([None, 1e6]),
    )
    parallelism = random_.choice([1, 2, 3])
    whole = Run(tmp_path / "whole", spec, parallelism).read(random_)
    assert sorted(flat(whole.ids())) == good
    assert len(flat(whole.readers[0].snapshot()["rests"])) == 0
    restored, found = None, [[] for _ in range(parallelism)]
    for _ in range(random_.choice([1, 2, 4])):
        run = Run(tmp_path, spec, parallelism, restored, batch_size=random_.choice([8, 50]))
        restored = run.read(random_, random_.randrange(30)).stop()
        found = [before + after for before, after in zip(found, run.ids(), strict=True)]
    # What is read behind the cut and lost with the process comes again, and its dead letters do not.
    lost = Run(tmp_path, spec, parallelism, restored).read(random_, random_.randrange(30))
    lost.stop()
    run = Run(tmp_path, spec, parallelism, restored).read(random_)
    run.stop()
    assert [before + after for before, after in zip(found, run.ids(), strict=True)] == whole.ids()
    assert known_letters(tmp_path) == sorted(bad)
    assert sum(reader.rejected for reader in run.readers) == len(bad)


@pytest.mark.parametrize("seed", range(cases(3)))
def test_dead_letters_are_there_once_where_a_job_failed_before_its_first_checkpoint(
    tmp_path, tiny_splits, seed
):
    random_ = random.Random(seed)
    _, bad = write_lines(tmp_path / "in", random_, 3, 100)
    spec = JsonLinesSpec(schema=SCHEMA, path=str(tmp_path / "in"), line_bytes_max=LINE_BYTES_MAX)
    for generation in (1, 2):
        Run(tmp_path, spec, 2, generation=generation).read(random_, random_.randrange(60)).close()
    run = Run(tmp_path, spec, 2, generation=3).read(random_)
    run.close()
    assert known_letters(tmp_path) == sorted(bad)
    assert sum(reader.rejected for reader in run.readers) == len(bad)


def write_records(directory, random_, files, records):
    """Files of good, bad, blank and huge records, of several lines some; as :func:`write_lines`."""
    good, bad, number = [], [], 0
    directory.mkdir()
    for file in range(files):
        path = directory / (f"part-{file}.csv" + random_.choice(SUFFIXES))
        raw = bytearray(random_.choice([b"", b"\xef\xbb\xbf"]))
        raw += random_.choice([b"id,text", b'"id","text"']) + random_.choice([b"\n", b"\r\n"])
        for _ in range(random_.randrange(1, records)):
            kind = random_.random()
            if kind < 0.1:
                pass
            elif kind < 0.25:
                bad.append((str(path), len(raw)))
                raw += random_.choice(
                    [b"1", b"1,2,3", b"x,y", b",y", b'1,"a"b', b'1,"open', b"1,\xff", b'1,a"a']
                )
            elif kind < 0.27:
                bad.append((str(path), len(raw)))
                raw += b"1," + b"y" * random_.choice([4000, 40_000, 200_000])
            else:
                text = "z" * random_.choice([1, 3, 60]) + random_.choice(["", ',"é', "\n\U0001f600\r\n"])
                quoted = text.replace('"', '""')
                raw += f'{number},"{quoted}"'.encode() if len(text) != 3 else f"{number},{text}".encode()
                good.append(number)
                number += 1
            raw += random_.choice([b"\n", b"\n", b"\r\n"])
        if random_.random() < 0.5:
            del raw[-1]
        write_file(path, raw)
    return good, bad


@pytest.mark.parametrize("seed", range(cases(15)))
def test_csv_goes_on_exactly_behind_the_last_row(tmp_path, tiny_splits, seed):
    random_ = random.Random(seed)
    good, bad = write_records(tmp_path / "in", random_, random_.choice([1, 3]), 200)
    spec = CsvSpec(
        schema=SCHEMA,
        path=str(tmp_path / "in"),
        line_bytes_max=LINE_BYTES_MAX,
        rate=random_.choice([None, 1e6]),
    )
    restored, found, subtasks = None, [], random_.choice([1, 2, 3])
    for _ in range(random_.choice([1, 2, 4])):
        run = Run(tmp_path, spec, subtasks, restored, batch_size=random_.choice([8, 50]))
        restored = run.read(random_, random_.randrange(30)).stop()
        found += flat(run.ids())
        subtasks = random_.choice([subtasks, 1, 2, 3])
    run = Run(tmp_path, spec, subtasks, restored).read(random_)
    run.stop()
    assert sorted(found + flat(run.ids())) == good
    assert known_letters(tmp_path) == sorted(bad)


@pytest.mark.parametrize("seed", range(cases(5)))
def test_csv_without_newlines_in_fields_is_divided(tmp_path, tiny_splits, seed):
    random_ = random.Random(seed)
    (tmp_path / "in").mkdir()
    header = "text,id," + "x" * random_.choice([1, 3000])
    rows = [f'"{"," * random_.randrange(40)}",{n},' if n % 3 else f"{n},1" for n in range(300)]
    (tmp_path / "in" / "a.csv").write_text("\n".join([header, *rows]))
    spec = CsvSpec(
        schema=SCHEMA, path=str(tmp_path / "in"), quoted_newlines=False, line_bytes_max=LINE_BYTES_MAX + 100
    )
    restored, found = None, []
    for subtasks in (3, 3, 1, 4):
        run = Run(tmp_path, spec, subtasks, restored, batch_size=8)
        assert restored or all(run.readers[index]._chosen()[index] for index in range(subtasks))
        restored = run.read(random_, random_.randrange(30)).stop()
        found += flat(run.ids())
    found += flat(Run(tmp_path, spec, 4, restored).read(random_).ids())
    assert sorted(found) == [n for n in range(300) if n % 3]


@pytest.mark.parametrize("seed", range(cases(10)))
def test_json_lines_are_shared_anew_among_other_subtasks(tmp_path, tiny_splits, seed):
    random_ = random.Random(1000 + seed)
    good, bad = write_lines(tmp_path / "in", random_, 3, 150)
    spec = JsonLinesSpec(schema=SCHEMA, path=str(tmp_path / "in"), line_bytes_max=LINE_BYTES_MAX)
    restored, found, subtasks = None, [], random_.choice([1, 2, 3])
    for _ in range(3):
        run = Run(tmp_path, spec, subtasks, restored)
        restored = run.read(random_, random_.randrange(30)).stop()
        found += flat(run.ids())
        subtasks = random_.choice([1, 2, 3, 5])
    run = Run(tmp_path, spec, subtasks, restored).read(random_)
    run.stop()
    assert sorted(found + flat(run.ids())) == good
    assert known_letters(tmp_path) == sorted(bad)


@pytest.mark.parametrize("seed", range(cases(8)))
def test_row_groups_go_on_at_the_row_or_are_shared_anew(tmp_path, seed):
    random_ = random.Random(seed)
    (tmp_path / "in").mkdir()
    number, bad = 0, []
    for file in range(3):
        ids, path = [], tmp_path / "in" / f"part-{file}.parquet"
        for row in range(random_.randrange(1, 300)):
            ids.append(None if random_.random() < 0.2 else number)
            if ids[-1] is None:
                bad.append((str(path), row))
            number += 1
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": ["a"] * len(ids)})
        pq.write_table(table, path, row_group_size=random_.choice([17, 100]))
    spec = ParquetSpec(schema=SCHEMA, path=str(tmp_path / "in"))
    whole = Run(tmp_path / "whole", spec, 2).read(random_)
    restored, found = None, [[], []]
    for _ in range(3):
        run = Run(tmp_path, spec, 2, restored, batch_size=random_.choice([8, 50]))
        restored = run.read(random_, random_.randrange(30)).stop()
        found = [before + after for before, after in zip(found, run.ids(), strict=True)]
    run = Run(tmp_path, spec, 2, restored).read(random_)
    assert [before + after for before, after in zip(found, run.ids(), strict=True)] == whole.ids()
    other = Run(tmp_path, spec, random_.choice([1, 3, 4]), restored).read(random_)
    assert sorted(flat(found) + flat(other.ids())) == sorted(flat(whole.ids()))
    run.stop()
    assert set(known_letters(tmp_path)) == set(bad)


@pytest.mark.parametrize("kind", ["json_lines", "parquet"])
@pytest.mark.parametrize("seed", range(cases(5)))
def test_ordered_files_stay_in_order_with_any_subtasks(tmp_path, tiny_splits, kind, seed):
    """Also when a job that divided its files made the checkpoint."""
    random_ = random.Random(seed)
    (tmp_path / "in").mkdir()
    for file in range(3):
        ids = list(range(file * 1000, file * 1000 + random_.randrange(1, 300)))
        if kind == "parquet":
            table = pa.table({"id": pa.array(ids, pa.int64()), "text": ["a"] * len(ids)})
            pq.write_table(table, tmp_path / "in" / f"part-{file}.parquet", row_group_size=17)
        else:
            lines = "".join(json.dumps({"id": number, "text": "a"}) + "\n" for number in ids)
            (tmp_path / "in" / f"part-{file}.jsonl").write_text(lines)
    make = JsonLinesSpec if kind == "json_lines" else ParquetSpec
    spec = make(schema=SCHEMA, path=str(tmp_path / "in"), ordered=True)
    divided = make(schema=SCHEMA, path=str(tmp_path / "in"))
    restored, first = None, seed % 2
    found = []
    for number in range(4):
        subtasks = random_.choice([1, 2, 3, 5])
        run = Run(tmp_path, divided if first and not number else spec, subtasks, restored)
        run.read(random_, random_.randrange(30) if number < 3 else 1 << 30)
        places = {}
        for index, ids in enumerate(run.ids()):
            for file in {value // 1000 for value in ids}:
                places.setdefault(file, []).append(index)
                own = [value for value in ids if value // 1000 == file]
                assert own == sorted(own)
        if not (first and number == 0):
            assert all(len(indices) == 1 for indices in places.values())
        found += flat(run.ids())
        restored = run.stop()
    assert len(found) == len(set(found))
    whole = Run(tmp_path / "whole", spec, 2).read(random_)
    assert sorted(found) == sorted(flat(whole.ids()))


def test_the_default_order_is_not_in_the_fingerprint():
    assert "ordered" not in JsonLinesSpec(schema=SCHEMA, path="x").describe()
    assert ParquetSpec(schema=SCHEMA, path="x", ordered=True).describe()["ordered"] is True


@pytest.mark.parametrize("kind", [JsonLinesSpec, CsvSpec])
def test_graphs_keep_their_fingerprints_though_longer_lines_are_read(kind):
    spec = kind(schema=SCHEMA, path="x")
    assert spec.describe()["line_bytes_max"] == spec.line_bytes_max == 32 << 20
    assert spec.former_form()["line_bytes_max"] == told_form(spec)["line_bytes_max"] == 8 << 20
    other = kind(schema=SCHEMA, path="x", line_bytes_max=32 << 10)
    assert other.former_form()["line_bytes_max"] == told_form(other)["line_bytes_max"] == 32 << 10


@pytest.mark.parametrize("subtasks", [(2, 2), (2, 3), (3, 1)])
def test_limit_on_events_counts_over_a_restart(tmp_path, subtasks):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(20_000)))
    spec = JsonLinesSpec(schema=SCHEMA, path=str(path), events_max=9001)
    random_ = random.Random(1)
    first = Run(tmp_path, spec, subtasks[0]).read(random_, 100)
    restored = first.stop()
    second = Run(tmp_path, spec, subtasks[1], restored).read(random_)
    ids = flat(first.ids()) + flat(second.ids())
    assert len(set(ids)) == len(ids) == 9001
    assert flat(Run(tmp_path, spec, subtasks[1], second.stop()).read(random_).ids()) == []


def paced(tmp_path, rows=300):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": "t" * 900}) + "\n" for n in range(rows)))
    return JsonLinesSpec(schema=SCHEMA, path=str(path), rate=1000.0)


def times(run):
    return sorted(row[INGEST_TIME_COLUMN] for rows in run.rows for row in rows)


def check_times(found, start_us, count):
    """An event per millisecond; the last ones are further apart, when a subtask has no more."""
    assert len(set(found)) == len(found) == count
    half = count // 2
    assert found[:half] == [start_us + 1000 * n for n in range(half)]
    assert all((time - start_us) % 1000 == 0 for time in found)


def test_a_paced_source_keeps_its_schedule(tmp_path):
    spec, random_ = paced(tmp_path), random.Random(3)
    first = Run(tmp_path, spec, 2).read(random_, 60)
    # Ten seconds later everything is overdue, and carries its old time.
    clock = ManualClock(START_US + 10_000_000)
    second = Run(tmp_path, spec, 2, first.stop(), clock=clock).read(random_)
    assert clock.now_us() == START_US + 10_000_000
    whole = Run(tmp_path, spec, 2).read(random_)
    assert sorted(times(first) + times(second)) == times(whole)


def test_another_job_start_begins_a_new_schedule(tmp_path):
    spec, random_ = paced(tmp_path), random.Random(3)
    first = Run(tmp_path, spec, 2).read(random_, 60)
    later = START_US + 86_400_000_000
    second = Run(tmp_path, spec, 2, first.stop(), start_us=later).read(random_, 50)
    # A failure behind that keeps the new one.
    third = Run(tmp_path, spec, 2, second.stop(), start_us=later).read(random_)
    check_times(sorted(times(second) + times(third)), later, 300 - len(times(first)))


def test_other_subtasks_keep_the_schedule_of_the_source(tmp_path):
    spec, random_ = paced(tmp_path), random.Random(4)
    first = Run(tmp_path, spec, 2).read(random_, 60)
    given = len(times(first))
    second = Run(tmp_path, spec, 3, first.stop()).read(random_)
    check_times(times(second), START_US + 1000 * given, 300 - given)


def cut(tmp_path, spec):
    return Run(tmp_path, spec, 1).read(random.Random(1), 10).stop()


def opened(tmp_path, spec, restored):
    Run(tmp_path, spec, 1, restored)


def test_a_changed_input_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": n, "text": "t" * 50}) + "\n" for n in range(1000)]
    path.write_text("".join(lines))
    spec = JsonLinesSpec(schema=SCHEMA, path=str(path))
    restored = cut(tmp_path, spec)
    opened(tmp_path, spec, restored)
    start = restored[0]["rests"][0][1]
    path.write_text("".join(lines[:-1]))
    with pytest.raises(
        InputError, match=f"{path}, to be read on from byte {start}, has changed .* put the file back"
    ):
        opened(tmp_path, spec, restored)
    path.write_text("".join([lines[0].replace("t", "u"), *lines[1:]]))
    with pytest.raises(
        InputError, match=f"from byte {start}, has changed since the checkpoint: other content"
    ):
        opened(tmp_path, spec, restored)
    path.unlink()
    with pytest.raises(InputError, match=f"from byte {start}, cannot be read: No such file"):
        opened(tmp_path, spec, restored)


def test_a_change_in_the_middle_shows_where_no_line_starts(tmp_path):
    path = tmp_path / "a.jsonl"
    raw = b"".join(json.dumps({"id": n, "text": "t" * 200}).encode() + b"\n" for n in range(1000))
    path.write_bytes(raw)
    spec = JsonLinesSpec(schema=SCHEMA, path=str(path))
    restored = cut(tmp_path, spec)
    start = restored[0]["rests"][0][1]
    assert 4096 < start < len(raw) - 4096
    path.write_bytes(raw[: start - 1] + b" " + raw[start:])
    with pytest.raises(InputError, match=f"no line starts at byte {start}"):
        Run(tmp_path, spec, 1, restored).read(random.Random(1))


def test_a_foreign_position_is_refused(tmp_path):
    spec = paced(tmp_path)
    restored = cut(tmp_path, spec)
    other = JsonLinesSpec(schema=SCHEMA, path=str(tmp_path))
    with pytest.raises(InputError, match=r"the checkpoint stands in .*a\.jsonl .* the job now reads"):
        opened(tmp_path, other, restored)
    with pytest.raises(InputError, match="of version 99, this is Weir with version 1"):
        opened(tmp_path, spec, {0: restored[0] | {"version": 99}})
    with pytest.raises(InputError, match=r"cannot be read .KeyError"):
        opened(tmp_path, spec, {0: {"version": 1}})
