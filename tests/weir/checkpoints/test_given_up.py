"""Uploads that nobody needs any more end between files and pieces of files, whatever is left of them."""

from __future__ import annotations

import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from weir.checkpoints import local_files
from weir.checkpoints.arrow_files import open_arrow_files
from weir.checkpoints.checkpoint_files import CheckpointFiles
from weir.checkpoints.local_files import LocalFiles
from weir.errors import CheckpointError

PIECE = b"x" * (4 << 20)


def no_link(*_):
    raise OSError(errno.EXDEV, "another device")


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_an_upload_that_is_given_up_ends_before_its_file(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(local_files.os, "link", no_link)
    (tmp_path / "store").mkdir()
    place = (
        LocalFiles(tmp_path / "store")
        if kind == "local"
        else open_arrow_files((tmp_path / "store").as_uri(), [])
    )
    files = CheckpointFiles(place)
    # A file that has no end before the test says so.
    os.mkfifo(tmp_path / "endless")
    with ThreadPoolExecutor(1) as threads:
        upload = threads.submit(files.publish_all, [(tmp_path / "endless", "files/1/a")])
        with contextlib.suppress(BrokenPipeError), open(tmp_path / "endless", "wb", buffering=0) as pipe:
            pipe.write(PIECE)
            files.give_up()
            while not upload.done():
                pipe.write(PIECE)
        with pytest.raises(CheckpointError, match="the upload was given up, as the job ends"):
            upload.result()
    (tmp_path / "small").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="given up"):
        files.publish(tmp_path / "small", "files/1/b")
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
