"""Damage to any file of a checkpoint: it is refused with the file's name; ``python -m benchmarks damage`` has more."""

from collections import Counter

import pytest

from benchmarks.damage import outcomes
from weir.checkpoints.digests import digest_of, sealed, unsealed
from weir.checkpoints.file_checks import FileChecks
from weir.errors import CheckpointError, FailureKind
from weir.protocol.checkpoints.manifest import FileRef


def test_what_is_restored_is_right_or_refused_with_the_name_of_the_file():
    found = list(outcomes(80, seed=7))
    assert not [about for outcome, about in found if outcome == "wrong"]
    assert Counter(outcome for outcome, _ in found)["refused"] > 60


def test_a_digest_is_a_promise(tmp_path):
    """Checkpoints are read by later versions."""
    path = tmp_path / "file"
    path.write_bytes(b"weir" * 1_000)
    assert digest_of(path) == "350302e01d102906b91e6e596774f84e"
    document = b'{"format_version":2,"parts":[]}'
    assert (
        sealed(document) == b'{"digest":"fd2caba559511ab96e5babc614f38b9e","format_version":2,"parts":[]}\n'
    )
    assert unsealed(sealed(document)) == (document, True)


def test_a_document_without_a_digest_is_left_to_who_reads_it():
    assert unsealed(b'{"format_version":1}') == (b'{"format_version":1}', False)


@pytest.mark.parametrize("place", range(0, 60, 3))
def test_a_flip_in_a_sealed_document_is_found_or_takes_the_seal_away(place):
    data = bytearray(sealed(b'{"format_version":2,"parts":[1,2,3,4,5,6]}'))
    data[place] ^= 4
    try:
        _, has_seal = unsealed(bytes(data))
    except CheckpointError:
        return
    assert not has_seal


def test_a_damaged_copy_is_dropped_and_the_next_attempt_fetches_it(tmp_path):
    files = []
    for name in ("early", "whole", "late"):
        path = tmp_path / name
        path.write_bytes(name.encode())
        files.append((FileRef(f"files/{name}", path.stat().st_size, digest_of(path)), path))
    (early, early_path), _, (late, late_path) = files
    early_path.write_bytes(b"EARLY")
    late_path.write_bytes(b"LATE")
    dropped = []
    # The first two are read at once, the third one beside the job.
    checks = FileChecks("the store", tmp_path / "state", at_once_bytes=10)
    assert checks.check_copies(files, dropped.append) == [(early, early_path)]
    with pytest.raises(CheckpointError, match="files/late: the copy of it on this disk is damaged") as caught:
        checks.settle()
    assert caught.value.failure_kind is FailureKind.OUTAGE
    assert dropped == [early, late]
    checks.close()
