"""Random lives of a checkpoint store: nothing that a manifest names is deleted, and everything else goes at last."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import cases
from tests.weir.checkpoints.manifests import manifest_of
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.layout import checkpoint_of, files_folder
from weir.checkpoints.local_files import LocalFiles
from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import FileRef


class CrashingFiles(LocalFiles):
    """Dies in the middle of a deletion, after ``left`` files."""

    left: int | None = None

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self.left is not None:
                if self.left == 0:
                    raise OSError(errno.EIO, "the process ended here")
                self.left -= 1
            super().delete([path])

    def delete_folder(self, folder: str) -> None:
        self.delete(sorted(file.path for file in self.files(folder)))
        super().delete_folder(folder)


class Life:
    """A store, and what a job would do with it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        self.source.write_bytes(b"data")
        self.checkpoint_id = 0
        #: Files that a task manager takes for present: those of the latest committed checkpoint and newer ones.
        self.known: list[FileRef] = []
        self.open()

    def open(self) -> None:
        """A control plane that starts: it knows nothing of before."""
        self.place = CrashingFiles(self.root / "job")
        self.store = CheckpointStore(self.place)

    def checkpoint(self, new: int, reused: list[int], commits: bool) -> None:
        self.checkpoint_id += 1
        folder = files_folder(self.checkpoint_id)
        files = [self.store.publish(self.source, f"{folder}/store/{number}") for number in range(new)]
        self.known += files
        named = {*files, *(self.known[index % len(self.known)] for index in reused if self.known)}
        if commits:
            self.store.write_manifest(manifest_of(self.checkpoint_id, sorted(named, key=lambda f: f.path)))
            self.known = sorted(named, key=lambda f: f.path)

    def expire(self, retained: int, in_flight: bool, crash_after: int | None) -> None:
        before = self.store.list_manifests()
        self.place.left = crash_after
        try:
            self.store.expire(retained, self.checkpoint_id + 1 if in_flight else None)
        except CheckpointError:
            self.open()
        self.place.left = None
        assert self.store.list_manifests()[-retained:] == before[-retained:]
        if self.checkpoint_id % 2:
            self.open()

    def check_named_files(self) -> set[str]:
        named: set[str] = set()
        for path in self.store.list_manifests():
            named |= self.store.read_manifest(path).paths
        assert all(size is not None for size in self.place.sizes(sorted(named)))
        return named


CHECKPOINT = st.tuples(st.integers(0, 3), st.lists(st.integers(0, 20), max_size=4), st.booleans())
EXPIRY = st.tuples(st.integers(1, 3), st.booleans(), st.none() | st.integers(0, 5))


@settings(max_examples=cases(25), deadline=None)
@given(st.lists(CHECKPOINT | EXPIRY, max_size=25))
def test_no_named_file_goes_and_every_orphan_does(steps):
    with tempfile.TemporaryDirectory() as root:
        life = Life(Path(root))
        for first, second, third in steps:
            if isinstance(second, list):
                life.checkpoint(first, second, third)
            else:
                life.expire(first, second, third)
            life.check_named_files()
        life.checkpoint(1, [], True)
        life.expire(1, False, None)
        named = life.check_named_files()
        left = {file.path for file in life.place.files("files")}
        assert {path for path in left if checkpoint_of(path) != life.checkpoint_id} <= named
        assert len(life.store.list_manifests()) == 1
