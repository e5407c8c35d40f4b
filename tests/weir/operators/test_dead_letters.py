from __future__ import annotations

import base64
import json

import pytest

from weir.errors import InputError
from weir.operators.dead_letters import DeadLetterFile


def entries(letters):
    return [json.loads(line) for line in letters.path.read_bytes().splitlines()]


def test_nothing_is_made_without_bad_records(tmp_path):
    letters = DeadLetterFile(tmp_path / "dead", "job", "source", 0)
    letters.close()
    assert list(tmp_path.iterdir()) == []


def test_records_are_on_disk_at_once_and_appended_to(tmp_path):
    for position in (3, 9):
        letters = DeadLetterFile(tmp_path, "my job/é", "../source", 1)
        letters.reject("a.json", position, "no good", b"ab\xc3\xa9")
        assert entries(letters)[-1] == {
            "source": "a.json",
            "position": position,
            "length": 4,
            "reason": "no good",
            "raw": "abé",
            "truncated": False,
        }
        assert letters.rejected == 1
        letters.close()
    assert len(entries(letters)) == 2
    assert letters.path.parent.parent == tmp_path


def test_binary_is_kept_exactly_and_long_records_are_cut(tmp_path):
    letters = DeadLetterFile(tmp_path, "job", "source", 0, raw_bytes_max=5)
    letters.reject("a", 0, "r", b"\xff\x00")
    letters.reject("a", 1, "r", "abcdé€".encode())
    letters.reject("a", 2, "r", b"abc", length_bytes=50_000_000)
    letters.close()
    binary, cut, huge = entries(letters)
    assert base64.b64decode(binary["raw_base64"]) == b"\xff\x00"
    assert (binary["raw"], binary["truncated"]) == ("\ufffd\x00", False)
    assert (cut["length"], cut["truncated"], "raw_base64" in cut) == (9, True, False)
    assert (huge["length"], huge["truncated"], huge["raw"]) == (50_000_000, True, "abc")


def test_stopping_at_the_first_bad_record(tmp_path):
    letters = DeadLetterFile(tmp_path, "job", "source", 0, on_bad_record="fail")
    with pytest.raises(InputError, match="a at byte 7: no good; correct the record"):
        letters.reject("a", 7, "no good", b"x")


def test_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    letters = DeadLetterFile(tmp_path / "file", "job", "source", 0)
    with pytest.raises(InputError, match="cannot write dead letters to"):
        letters.reject("a", 7, "no good", b"x")
