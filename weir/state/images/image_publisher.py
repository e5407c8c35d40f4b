"""Images of one store on their way into the checkpoint store: taken fast, published in another thread.

Table files never change. One that was in an image of the latest committed checkpoint, or of one since, is in the
checkpoint store and stays there, so it is named again instead of being copied. So is a small file that has the content
that it had then: options hardly ever change, and each file that is new is waited for until it is on the disk, and
deleted with its checkpoint. See docs/design/0002, "The store".
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.layout import files_folder
from weir.errors import CheckpointError, StateError
from weir.protocol.checkpoints.manifest import FileRef, StoreImage
from weir.state.api import StateBackend
from weir.state.images.local_copies import LocalCopies
from weir.state.stores.directory_lock import SNAPSHOTS_NAME

#: Files that are the same in every image that has them.
TABLE_SUFFIX = ".sst"
#: Files of more bytes, without tables, are not compared: a log that grows changes with every image.
_COMPARED_BYTES_MAX = 64 << 10
#: Image ids are made of it, and addresses of images of these.
_STORE_ID = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(slots=True)
class _Known:
    """A file that is in the checkpoint store."""

    file: FileRef
    #: The newest checkpoint with an image that has it.
    checkpoint_id: int
    #: Of a small file; a table has the name of none before it.
    content: bytes | None = None


class ImagePublisher:
    """Takes and publishes images of one store; one per store and deployment. Methods may be called from any thread.

    Args:
        store: where images go.
        backend: the store to be imaged.
        directory: the store's claimed directory.
        store_id: part of the names of its files; nobody else's, not even an earlier deployment's.
        opened_from: the image from which the store was opened, if its files are in the same checkpoint store.
        checkpoint_id: the committed checkpoint to which that image belongs.
        database: the run of a database of which the store has what is not applied; "": the store has all state.
    """

    def __init__(
        self,
        store: CheckpointStore,
        backend: StateBackend,
        directory: Path,
        store_id: str,
        *,
        opened_from: StoreImage | None = None,
        checkpoint_id: int = 0,
        database: str = "",
    ) -> None:
        self._database = database
        if not _STORE_ID.fullmatch(store_id):
            raise ValueError(f"store id {store_id!r} must consist of letters, digits, - and _")
        self._store = store
        self._backend = backend
        self._snapshots = directory / SNAPSHOTS_NAME
        self._store_id = store_id
        #: None: files are in the checkpoint store as links, so copies of our own save nothing.
        self._copies = None if store.links_to(directory) else LocalCopies.published(directory)
        self._lock = threading.Lock()
        self._taken = 0
        self._known: dict[str, _Known] = {}
        self._committed_id = checkpoint_id
        #: A checkpoint was given up, perhaps because a known file is gone.
        self._is_doubtful = False
        #: Images that nobody has published or discarded yet.
        self._pending: dict[str, PendingImage] = {}
        #: So that a table file goes up once, when several images with it are published at the same time.
        self._publish_lock = threading.Lock()
        if opened_from is not None:
            tables = {name: file for name, file in opened_from.files.items() if name.endswith(TABLE_SUFFIX)}
            self._learn(tables, checkpoint_id)

    def take(self, checkpoint_id: int, *, stays: bool = False) -> PendingImage:
        """Hold the store as it is now, in links on this disk; called between two batches of a subtask.

        ``stays``: no end of a checkpoint discards it; whoever takes it publishes it in any case.

        Blocks while RocksDB writes its memory table out (20 to 70 ms, without the GIL), and the caller only.

        Raises:
            CheckpointError: the store cannot be written, because its disk is full for example.
        """
        with self._lock:
            self._taken += 1
            number = self._taken
        image_id = f"{self._store_id}-{checkpoint_id}-{number}"
        directory = self._snapshots / image_id
        try:
            self._snapshots.mkdir(exist_ok=True)
            self._backend.checkpoint(directory)
        except (OSError, StateError) as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise CheckpointError(f"checkpoint {checkpoint_id}: no image could be taken: {error}") from error
        pending = PendingImage(self, image_id, checkpoint_id, number, directory)
        if not stays:
            with self._lock:
                self._pending[image_id] = pending
        return pending

    def committed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: what only older ones name may be deleted at any time from now on."""
        self._discard_until(checkpoint_id)
        with self._lock:
            self._committed_id = max(self._committed_id, checkpoint_id)
            self._known = {n: k for n, k in self._known.items() if k.checkpoint_id >= self._committed_id}
            paths = {known.file.path for known in self._known.values()}
        if self._copies is not None:
            self._copies.keep_only(paths)

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up: its images that are not being published yet are discarded.

        The next image looks whether the files are there that it does not bring itself. If this store missed the news
        of a commit, they may not be, and every later checkpoint would be given up too.
        """
        self._discard_until(checkpoint_id)
        with self._lock:
            self._is_doubtful = True

    def _discard_until(self, checkpoint_id: int) -> None:
        with self._lock:
            pending = [image for image in self._pending.values() if image.checkpoint_id <= checkpoint_id]
        for image in pending:
            image.discard(wait=False)

    def settled(self, image_id: str) -> None:
        """Forget a pending image, for :class:`PendingImage`: it was published or discarded."""
        with self._lock:
            self._pending.pop(image_id, None)

    def _learn(
        self,
        files: Mapping[str, FileRef],
        checkpoint_id: int,
        contents: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Files are in an image of a checkpoint; ``contents``: of small ones."""
        with self._lock:
            if checkpoint_id < self._committed_id:
                return
            for name, file in files.items():
                content = None if contents is None else contents[name]
                known = self._known.get(name)
                if known is None or known.content != content:
                    self._known[name] = _Known(file, checkpoint_id, content)
                else:
                    known.checkpoint_id = max(known.checkpoint_id, checkpoint_id)

    def publish(self, pending: PendingImage) -> tuple[StoreImage, int]:
        """Publish an image, for :meth:`PendingImage.publish`."""
        names = sorted(os.listdir(pending.directory))
        tables = [name for name in names if name.endswith(TABLE_SUFFIX)]
        folder = f"{files_folder(pending.checkpoint_id)}/{self._store_id}"
        with self._publish_lock:
            self._look_again()
            with self._lock:
                files = {name: self._known[name].file for name in tables if name in self._known}
            new = [name for name in tables if name not in files]
            refs = self._store.publish_all([(pending.directory / name, f"{folder}/{name}") for name in new])
            files |= zip(new, refs, strict=True)
            if self._copies is not None:
                for name, file in zip(new, refs, strict=True):
                    self._copies.add(file, pending.directory / name)
            self._learn(files, pending.checkpoint_id)
        others = set(names) - set(tables)
        small, small_bytes = self._publish_small(pending, others, f"{folder}/{pending.number}")
        new_bytes = sum(file.size_bytes for file in refs) + small_bytes
        return StoreImage(pending.image_id, files | small, self._database), new_bytes

    def _publish_small(
        self, pending: PendingImage, names: Collection[str], folder: str
    ) -> tuple[dict[str, FileRef], int]:
        """The files of an image that are no tables, and the bytes of those that are new."""
        contents = {name: _small_content(pending.directory / name) for name in sorted(names)}
        with self._lock:
            kept = {
                name: known.file
                for name, content in contents.items()
                if content is not None and (known := self._known.get(name)) and known.content == content
            }
        new = [name for name in contents if name not in kept]
        refs = self._store.publish_all([(pending.directory / name, f"{folder}/{name}") for name in new])
        if self._copies is not None:
            for name, file in zip(new, refs, strict=True):
                self._copies.add(file, pending.directory / name)
        files = kept | dict(zip(new, refs, strict=True))
        comparable = {name: file for name, file in files.items() if contents[name] is not None}
        self._learn(comparable, pending.checkpoint_id, contents)
        return files, sum(file.size_bytes for file in refs)

    def _look_again(self) -> None:
        with self._lock:
            is_doubtful, self._is_doubtful = self._is_doubtful, False
            known = list(self._known.items())
        if not is_doubtful:
            return
        try:
            present = self._store.present([entry.file for _, entry in known])
        except CheckpointError:
            with self._lock:
                self._is_doubtful = True
            raise
        with self._lock:
            for (name, entry), is_there in zip(known, present, strict=True):
                if not is_there and self._known.get(name) is entry:
                    del self._known[name]


def _small_content(path: Path) -> bytes | None:
    """Return the content of a file; None: it has so much that it is not compared."""
    return path.read_bytes() if path.stat().st_size <= _COMPARED_BYTES_MAX else None


class PendingImage:
    """An image that is held on this disk; made by :meth:`ImagePublisher.take`."""

    def __init__(
        self, publisher: ImagePublisher, image_id: str, checkpoint_id: int, number: int, directory: Path
    ) -> None:
        self.image_id = image_id
        self.checkpoint_id = checkpoint_id
        #: Of all images of the store.
        self.number = number
        self.directory = directory
        self._publisher = publisher
        self._lock = threading.Lock()
        self._result: tuple[StoreImage, int] | CheckpointError | None = None

    def publish(self) -> tuple[StoreImage, int]:
        """Bring the image into the checkpoint store; returns it, and the bytes that were written there.

        Blocks for the copying: to be called in another thread than the subtask's. Called again, or by several
        threads, it gives the same; what was held on this disk is gone afterwards, also after an error.

        Raises:
            CheckpointError: the checkpoint store failed, or the image was discarded.
        """
        with self._lock:
            if self._result is None:
                try:
                    self._result = self._publisher.publish(self)
                except CheckpointError as error:
                    self._result = error
                except OSError as error:
                    self._result = CheckpointError(f"{self.directory} cannot be read: {error}")
                finally:
                    shutil.rmtree(self.directory, ignore_errors=True)
                    self._publisher.settled(self.image_id)
            if isinstance(self._result, CheckpointError):
                raise self._result
            return self._result

    def discard(self, *, wait: bool = True) -> None:
        """Give the image up; safe to call at any time. One that is being published is left alone, or waited for."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if self._result is None:
                self._result = CheckpointError(f"checkpoint {self.checkpoint_id} was given up")
                shutil.rmtree(self.directory, ignore_errors=True)
                self._publisher.settled(self.image_id)
        finally:
            self._lock.release()
