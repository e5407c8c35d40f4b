from __future__ import annotations

import gzip
import itertools
import os
import socket

import pytest
from pyarrow import fs

from weir.errors import InputError
from weir.operators.sources.files.input_files import RemoteFiles
from weir.operators.sources.files.local_input import LOCAL_INPUT, list_input_files
from weir.operators.sources.files.splits import (
    SPLIT_BYTES_MAX,
    SPLITS_PER_SUBTASK,
    Split,
    assign,
    count_lines,
    line_quotas,
    plan_splits,
    share_events,
)
from weir.operators.sources.lines.line_reader import LineReader


def read_lines(split: Split, **options) -> list[tuple[int, bytes]]:
    """Offset and text of every line that a reader gives for a split."""
    reader = LineReader(split, options.pop("line_bytes_max", 1 << 20), **options)
    found = []
    while True:
        reader.refill()
        if reader.start == reader.stop:
            break
        raw = reader.data[reader.start : reader.stop].tobytes()
        assert raw.endswith(b"\n")
        at = reader.base_offset + reader.start
        for line in raw[:-1].split(b"\n"):
            found.append((at, line))
            at += len(line) + 1
        reader.start = reader.stop
    reader.close()
    reader.check()
    return found


def test_lists_parts_of_a_directory_without_markers(tmp_path):
    for name in ("part-1.json", "part-0.json", "_SUCCESS", ".hidden", "part-0.json.crc", ".part-0.json.crc"):
        (tmp_path / name).write_text("x")
    (tmp_path / "inner").mkdir()
    expected = [str(tmp_path / "part-0.json"), str(tmp_path / "part-1.json")]
    assert list_input_files(str(tmp_path)) == expected
    assert list_input_files(str(tmp_path / "part-*")) == expected
    assert list_input_files(expected[1]) == expected[1:]


def test_wildcards_do_not_lead_into_folders_that_programs_keep_for_themselves(tmp_path):
    kept = ["day=1/a.json", "_hour=1/a.json", "a.json"]
    left_out = ["_temporary/0/a.json", "day=1/_delta_log/a.json", ".tmp/a.json"]
    for name in (*kept, *left_out):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    remote = RemoteFiles(fs.LocalFileSystem(), "far://", str(tmp_path), "far")
    for files, scheme in ((LOCAL_INPUT, ""), (remote, "far://")):
        found = [file.path for file in files.find(f"{scheme}{tmp_path}/**/*.json")]
        assert sorted(name.split(f"{tmp_path.name}/")[1] for name in found) == sorted(kept)
    pattern = str(tmp_path / "_temporary/*/*.json")
    assert list_input_files(pattern) == [str(tmp_path / "_temporary/0/a.json")]


def test_of_known_files_no_size_is_asked(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text("xyz")
    known = {str(tmp_path / "a"), str(tmp_path / "c")}
    assert [file.size_bytes for file in LOCAL_INPUT.find(str(tmp_path), known.__contains__)] == [-1, 3, -1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nothing", "no such file or directory"),
        ("no*.json", "no file matches"),
        (".", "holds no input files"),
    ],
)
def test_absent_input_is_one_clear_line(tmp_path, path, said):
    with pytest.raises(InputError, match=said) as caught:
        list_input_files(str(tmp_path / path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_splits_cover_files_without_gaps_and_small_inputs_reach_all_subtasks(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * (9 << 20))
    (tmp_path / "b.gz").write_bytes(b"z" * 100)
    (tmp_path / "empty").write_bytes(b"")
    splits = plan_splits(list_input_files(str(tmp_path)), 4)
    plain = [split for split in splits if not split.compressed]
    assert [split for split in splits if split.compressed] == [Split(str(tmp_path / "b.gz"), 0, 100, "gzip")]
    assert (plain[0].start_bytes, plain[-1].stop_bytes) == (0, 9 << 20)
    assert all(a.stop_bytes == b.start_bytes for a, b in itertools.pairwise(plain))
    assert 4 * SPLITS_PER_SUBTASK - 1 <= len(plain) <= 4 * SPLITS_PER_SUBTASK + 1
    assert all(split.size_bytes <= SPLIT_BYTES_MAX for split in plain)


def test_assignment_is_balanced_complete_and_in_input_order():
    sizes = [32, 32, 32, 32, 32, 7, 100]
    shares = assign(sizes, list(range(7)), 3)
    assert sorted(itertools.chain(*shares)) == list(range(7))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(sizes[unit] for unit in share) for share in shares]
    assert max(loads) - min(loads) <= 32
    assert assign([], [], 2) == [[], []]


@pytest.mark.parametrize("newline_at_end", [True, False])
def test_every_line_belongs_to_one_split_wherever_cuts_fall(tmp_path, newline_at_end):
    lines = [b"", b"a", b"bb", b"", b"ccccccc", b"d" * 40, b"e"]
    raw = b"\n".join(lines) + (b"\n" if newline_at_end else b"")
    path = tmp_path / "lines"
    path.write_bytes(raw)
    expected = read_lines(Split(str(path), 0, len(raw)))
    assert [line for _, line in expected] == lines
    for cuts in itertools.combinations(range(1, len(raw), 2), 2):
        edges = [0, *cuts, len(raw)]
        splits = [Split(str(path), a, b) for a, b in itertools.pairwise(edges)]
        assert [found for split in splits for found in read_lines(split, buffer_bytes=32)] == expected
        for split in splits:
            assert line_quotas(100, [[split], []], count_lines)[0] == len(read_lines(split))


def test_byte_order_mark_is_not_part_of_the_first_line(tmp_path):
    path = tmp_path / "marked"
    path.write_bytes(b"\xef\xbb\xbfa\nb\n")
    assert read_lines(Split(str(path), 0, 7)) == [(3, b"a"), (5, b"b")]


def test_overlong_lines_are_passed_over_with_bounded_memory(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"a\n" + b"x" * 100_000 + b"\nb\n" + b"y" * 3_000 + b"\n" + b"z" * 5_000)
    size = path.stat().st_size
    reader = LineReader(Split(str(path), 0, size), line_bytes_max=500, buffer_bytes=1000)
    passed, lines = [], []
    while True:
        passed += reader.refill()
        assert len(reader.data) < 1100
        if reader.start == reader.stop:
            break
        lines += reader.data[reader.start : reader.stop].tobytes().split()
        reader.start = reader.stop
    reader.close()
    assert lines == [b"a", b"b"]
    assert [(line.position, line.length_bytes) for line in passed] == [
        (2, 100_000),
        (100_005, 3_000),
        (103_006, 5_000),
    ]
    assert passed[0].head == b"x" * len(passed[0].head)


def test_a_file_that_has_become_shorter_is_told_of_after_its_lines(tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(b"a\nb\nc")
    reader = LineReader(Split(str(path), 0, 8), line_bytes_max=100)
    reader.refill()
    assert reader.data[: reader.stop].tobytes() == b"a\nb\n"
    reader.start = reader.stop
    with pytest.raises(
        InputError, match="cut: it has become shorter while it was read: it had 8 bytes or more"
    ):
        reader.check()
    reader.close()
    with pytest.raises(InputError, match="cut: it has become shorter"):
        LineReader(Split(str(path), 7, 9), line_bytes_max=100)


def test_broken_gzip_names_the_file(tmp_path):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(b"abc\n" * 10_000)[:-20])
    with pytest.raises(InputError, match=r"cut\.gz"):
        read_lines(Split(str(path), 0, 10, codec="gzip"))
    path.write_bytes(b"not gzip at all")
    with pytest.raises(InputError, match=r"cut\.gz"):
        read_lines(Split(str(path), 0, 10, codec="gzip"))


def test_event_limit_is_shared_as_evenly_as_possible():
    assert share_events(10, [100, 100, 100]) == [4, 3, 3]
    assert share_events(10, [100, 1, 100]) == [5, 1, 4]
    assert share_events(10, [2, 0, 3]) == [2, 0, 3]
    assert sum(share_events(0, [5, 5])) == 0


def test_quota_of_compressed_lines(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"1\n2\n3\n"))
    split = Split(str(path), 0, path.stat().st_size, codec="gzip")
    assert line_quotas(100, [[split], []], count_lines) == [3, 0]
    assert line_quotas(2, [[split], []], count_lines) == [2, 0]


def test_a_fifo_a_socket_and_a_device_are_called_by_their_names(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path, kind in (
            (tmp_path / "fifo", "a FIFO"),
            (tmp_path / "socket", "a socket"),
            ("/dev/null", "a device"),
        ):
            with pytest.raises(InputError, match=f"{path}: it is {kind}, which cannot be read again"):
                list_input_files(str(path))
