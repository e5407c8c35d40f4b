"""Stores opened from images in a checkpoint store: one as the task manager's own, others to fetch key groups from.

Where the checkpoint store is on the same file system, an image is opened from links, whatever its size. From
another machine (S3) the files of a small image are fetched first, except those that are here already. The tables of a
large one stay where they are, and what is read of them is fetched (``remote_image``). See docs/design/0002, "Recovery".
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weir import threads
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.file_checks import FileChecks
from weir.errors import StateError, WeirError
from weir.protocol.checkpoints.manifest import FileRef, StoreImage
from weir.state.api import StateBackend, StateReader
from weir.state.images.image_client import ImageClient, image_ids_of
from weir.state.images.image_publisher import TABLE_SUFFIX
from weir.state.images.local_copies import LocalCopies
from weir.state.images.range_cache import CACHED_BYTES_MAX, RangeCache
from weir.state.images.remote_image import RemoteImage
from weir.state.placement.group_places import state_bounds
from weir.state.stores.directory_lock import (
    IMAGES_NAME,
    StoreDirectory,
    claim_directory,
    describe_os_error,
)
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.memory_image import MEMORY_IMAGE_NAME, read_entries
from weir.state.stores.rocksdb_blocks import UnknownTableError
from weir.state.stores.rocksdb_manifest import Manifest, UnknownManifestError
from weir.state.stores.store_factory import StoreFactory

if TYPE_CHECKING:
    from weir.config.stores import RocksDbConfig

log = logging.getLogger(__name__)

_COPY_ENTRIES = 5_000
#: Files and their places here.
Items = list[tuple[FileRef, Path]]


@dataclass(eq=False)
class _Opened:
    backend: StateBackend | RemoteImage
    #: Calls under way.
    uses: int = 0


class Images:
    """The stores of a job on one task manager that come from images. Methods may be called from any thread.

    Args:
        store: the checkpoint store with the images.
        directory: where the task manager's store is; it is claimed by :meth:`open_main`.
        settings: of RocksDB; None: the task manager keeps its state in memory.
        fetched_bytes_max: images in another file system of which more is missing here are read block by block; None:
            none is.
        cached_bytes_max: of the disk, for what was read of these.
    """

    def __init__(
        self,
        store: CheckpointStore,
        directory: Path,
        settings: RocksDbConfig | None,
        fetched_bytes_max: int | None = None,
        cached_bytes_max: int = CACHED_BYTES_MAX,
    ) -> None:
        self._store = store
        self._fetched_bytes_max, self._cached_bytes_max = fetched_bytes_max, cached_bytes_max
        #: Of images that are read block by block; None: there was none.
        self._ranges: RangeCache | None = None
        self._directory = directory
        self._stores = StoreFactory(settings)
        #: Of the files that were fetched.
        self.checks = FileChecks(store.location, directory)
        #: What of the files is on this disk: of this task manager, and of others. None: files come from the checkpoint
        #: store as links, so copies of our own save nothing.
        self._copies = (
            None
            if store.links_to(directory)
            else (LocalCopies.published(directory), LocalCopies.standby(directory))
        )
        #: Fetched from another file system so far, and their bytes.
        self._fetched = (0, 0)
        #: Ours while the main store is open.
        self._is_claimed = False
        #: To be released here: a store in memory holds no directory.
        self._claimed: StoreDirectory | None = None
        self._lock = threading.Lock()
        self._known: dict[str, StoreImage] = {}
        #: By image id: clients that have not been closed.
        self._clients: dict[str, int] = {}
        self._opened: dict[str, _Opened] = {}
        #: Held while an image is opened, so that it is opened once.
        self._open_lock = threading.Lock()
        self._closed = False

    def beside(self, store: CheckpointStore) -> Images:
        """Images of another checkpoint store (or of later checkpoints), below the same directory; to be closed first.

        Called after :meth:`open_main`.
        """
        other = Images(store, self._directory, None, self._fetched_bytes_max, self._cached_bytes_max)
        other._stores, other._is_claimed = self._stores, True
        return other

    @property
    def location(self) -> str:
        """Location of the checkpoint store."""
        return self._store.location

    def register(self, images: Iterable[StoreImage]) -> None:
        """Tell which images there are; called before :meth:`connect` with those of the manifest."""
        with self._lock:
            self._known.update((image.image_id, image) for image in images)

    def unregister(self, image_ids: Iterable[str]) -> None:
        """No group is fetched from these any more, and none will be."""
        with self._lock:
            for image_id in image_ids:
                self._known.pop(image_id, None)

    def image(self, image_id: str) -> StoreImage:
        """An image that was registered: what a checkpoint names while groups are still fetched from it.

        Raises:
            StateError: it was not.
        """
        with self._lock:
            found = self._known.get(image_id)
        if found is None:
            raise StateError(
                f"no image {image_id!r} belongs to the checkpoint from which the job was started"
            )
        return found

    # --- the task manager's own store --------------------------------------------------------------------------

    def open_main(self, image: StoreImage | None) -> StateBackend:
        """The task manager's store with the content of an image (None: empty), for reading and writing.

        Comes before everything else but :meth:`register`. What an earlier run of ours left in the directory is
        removed first, what is not ours never. The caller closes it, after :meth:`close`.

        Raises:
            StateError: the directory is not ours, in use or full, or the image is damaged.
            CheckpointError: the image cannot be fetched.
        """
        directory = claim_directory(self._directory, fresh=True)
        self._is_claimed = True
        if self._copies is None:
            # An earlier job may have left some, whose checkpoints were elsewhere.
            for left in (LocalCopies.published(self._directory), LocalCopies.standby(self._directory)):
                left.keep_only(())
        try:
            # An image of the other kind is copied entry by entry.
            brings_files = (
                image is not None and self._stores.keeps_files and MEMORY_IMAGE_NAME not in image.files
            )
            if image is not None and brings_files:
                self._bring(image, directory.data_path, own=True)
            with self._naming_damage():
                backend = self._stores.open(directory)
            self._claimed = None if self._stores.keeps_files else directory
            if image is not None and not brings_files:
                self._copy_content(image, backend)
            return backend
        except BaseException:
            self._is_claimed, self._claimed = False, None
            directory.release()
            raise

    def _copy_content(self, image: StoreImage, target: StateBackend) -> None:
        """The image is of another kind than the store: its entries are written one by one."""
        with contextlib.closing(self.open_whole(image)) as source:
            entries = source.scan()
            while chunk := list(itertools.islice(entries, _COPY_ENTRIES)):
                target.write(chunk)

    # --- images to read from -----------------------------------------------------------------------------------

    def connect(self, address: str) -> ImageClient:
        """A client of the images that an address names; each is opened now, and closed with its last client.

        Raises:
            StateError: an image is damaged, was not registered, or the disk is full.
            CheckpointError: an image cannot be fetched.
        """
        image_ids = image_ids_of(address)
        with self._lock:
            for image_id in image_ids:
                self._clients[image_id] = self._clients.get(image_id, 0) + 1
        client = ImageClient(address, self._using, lambda: self._leave(image_ids))
        try:
            for image_id in image_ids:
                with self._using(image_id):
                    pass
        except BaseException:
            client.close()
            raise
        return client

    def is_read_by_blocks(self, image: StoreImage) -> bool:
        """Whether so much of an image would be fetched that its tables stay where they are."""
        copies, bytes_max = self._copies, self._fetched_bytes_max
        if copies is None or bytes_max is None:
            return False
        if not self._stores.keeps_files or MEMORY_IMAGE_NAME in image.files:
            return False
        missing = [file for file in set(image.files.values()) if not any(each.has(file) for each in copies)]
        return sum(file.size_bytes for file in missing) > bytes_max

    @property
    def fetched(self) -> tuple[int, int]:
        """Files that were fetched from another file system so far, because no copy was here, and their bytes.

        The bytes are also those that were fetched of files that stay there.
        """
        files, size_bytes = self._fetched
        return files, size_bytes + (0 if self._ranges is None else self._ranges.fetched_bytes)

    def standby_copies(self, store: CheckpointStore) -> LocalCopies | None:
        """Where files of other task managers may be kept that are in the checkpoint store of the job.

        Not always the one that it was opened from: that can be a savepoint's. None: they come as links, whoever
        published them.
        """
        return None if store.links_to(self._directory) else LocalCopies.standby(self._directory)

    def open_images(self) -> list[str]:
        """Ids of the images that clients have open: those from which groups are still being fetched."""
        with self._lock:
            return sorted(self._opened)

    @contextlib.contextmanager
    def _using(self, image_id: str) -> Iterator[StateReader]:
        opened = self._begin_use(image_id)
        try:
            yield opened.backend
        finally:
            with self._lock:
                opened.uses -= 1
            self._close_unused([image_id])

    def _begin_use(self, image_id: str) -> _Opened:
        with self._lock:
            opened = self._opened.get(image_id)
            if opened is not None:
                opened.uses += 1
                return opened
        with self._open_lock:
            with self._lock:
                self._check_open()
                opened = self._opened.get(image_id)
                if opened is not None:
                    opened.uses += 1
                    return opened
            opened = _Opened(self._open_image(self.image(image_id)), uses=1)
            try:
                with self._lock:
                    self._check_open()
                    self._opened[image_id] = opened
            except StateError:
                # Nobody else knows of it.
                opened.backend.close()
                raise
            return opened

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("the images of this job are closed")

    def _leave(self, image_ids: Iterable[str]) -> None:
        with self._lock:
            for image_id in image_ids:
                self._clients[image_id] -= 1
        self._close_unused(image_ids)

    def _close_unused(self, image_ids: Iterable[str]) -> None:
        unused = []
        with self._lock:
            for image_id in image_ids:
                opened = self._opened.get(image_id)
                if opened is not None and not opened.uses and not self._clients.get(image_id):
                    unused.append(self._opened.pop(image_id))
        for opened in unused:
            opened.backend.close()

    def close(self) -> None:
        """Close all images and remove their files; safe to call twice. Comes before the main store is closed."""
        with self._lock:
            self._closed = True
            opened, self._opened = list(self._opened.values()), {}
            claimed, self._claimed = self._claimed, None
        self.checks.close()
        for image in opened:
            image.backend.close()
        if self._ranges is not None:
            self._ranges.close()
        if claimed is not None:
            claimed.release()

    # --- files -------------------------------------------------------------------------------------------------

    def _open_image(self, image: StoreImage) -> StateBackend | RemoteImage:
        if self.is_read_by_blocks(image):
            try:
                return self._open_by_blocks(image)
            except (UnknownManifestError, UnknownTableError) as error:
                log.info("image %s is fetched as a whole: %s", image.image_id, error)
        return self.open_whole(image)

    def _open_by_blocks(self, image: StoreImage) -> RemoteImage:
        """Fetch what says which tables there are, and nothing else."""
        folder = self._new_folder(image)
        try:
            small = [
                (file, folder / _plain(name))
                for name, file in image.files.items()
                if not name.endswith(TABLE_SUFFIX)
            ]
            self._fetch(self._bring_copies(small, own=True), own=True)
            manifest = Manifest(folder / _plain((folder / "CURRENT").read_text().strip()))
            manifest.read_on()
            with self._lock:
                self._check_open()
                if self._ranges is None:
                    self._ranges = RangeCache(
                        self._directory, self._store.read_ranges, self._cached_bytes_max
                    )
            remote = RemoteImage(image.image_id, image.files, manifest, self._ranges)
        except (OSError, KeyError) as error:
            raise StateError(f"image {image.image_id} cannot be read: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        threads.start(lambda: _bring_indexes(remote), "image-indexes")
        return remote

    def _new_folder(self, image: StoreImage) -> Path:
        if not self._is_claimed:
            raise StateError(f"{self._directory} must be claimed (open_main) before images are opened in it")
        folder = self._directory / IMAGES_NAME / f"{_plain(image.image_id)}-{secrets.token_hex(4)}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise StateError(describe_os_error(folder, error)) from error
        return folder

    def open_whole(self, image: StoreImage) -> StateBackend:
        """Open a store with the content of an image, only for reading; the caller closes it.

        Raises:
            StateError: the image is damaged, or the disk is full.
            CheckpointError: the image cannot be fetched.
        """
        folder = self._new_folder(image)
        try:
            # rocksdict writes its configuration anew also where it only reads: through a link, into the checkpoint.
            self._bring(image, folder, own=MEMORY_IMAGE_NAME not in image.files)
            if MEMORY_IMAGE_NAME in image.files:
                backend: StateBackend = MemoryBackend()
                for entries in read_entries(folder):
                    backend.write(entries)
                shutil.rmtree(folder, ignore_errors=True)
                return backend
            with self._naming_damage():
                return self._stores.open_files(_ImageFolder(folder))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """A store that cannot be opened may have a file that is damaged: its name is the better answer."""
        try:
            yield
        except StateError:
            self.checks.settle()
            raise

    def _bring(self, image: StoreImage, folder: Path, *, own: bool) -> None:
        """Bring the files of an image into a folder; RocksDB never changes tables, but the files beside them."""
        tables: list[tuple[FileRef, Path]] = []
        others: list[tuple[FileRef, Path]] = []
        for name, file in image.files.items():
            (tables if name.endswith(TABLE_SUFFIX) else others).append((file, folder / _plain(name)))
        missing = self._bring_copies(tables)
        if missing and self._copies is not None:
            log.info("fetching %d table files of image %s", len(missing), image.image_id)
        self._fetch(missing, checks=self.checks)
        self._fetch(self._bring_copies(others, own=own), own=own)

    def _bring_copies(self, items: Items, *, own: bool = False) -> Items:
        """Bring what of these files is on this disk; returns the others."""
        if self._copies is None:
            return items
        published, standby = self._copies
        missing: Items = []
        brought: dict[LocalCopies, Items] = {published: [], standby: []}
        for file, target in items:
            copies = next((each for each in self._copies if each.bring(file, target, own=own)), None)
            (missing if copies is None else brought[copies]).append((file, target))
        for copies, found in brought.items():
            damaged = self.checks.check_copies(found, self._drop_copies, at_once=own)
            for _, target in damaged:
                target.unlink()
            missing += damaged
            if copies is standby:
                # It is this task manager's from now on: the next order lets those of others go.
                for file, _ in found:
                    published.add(file, standby.at(file.path))
        return missing

    def _drop_copies(self, file: FileRef) -> None:
        for copies in self._copies or ():
            copies.drop(file)

    def _fetch(self, items: Items, *, own: bool = False, checks: FileChecks | None = None) -> None:
        self._store.fetch_all(items, own=own, checks=checks)
        if self._copies is None:
            return
        files, size_bytes = self._fetched
        self._fetched = files + len(items), size_bytes + sum(file.size_bytes for file, _ in items)
        if not own:
            for file, target in items:
                self._copies[0].add(file, target)


def _bring_indexes(image: RemoteImage) -> None:
    try:
        image.bring_indexes()
    except WeirError as error:
        # Whoever needs one fetches it again.
        log.info("indexes of an image are not here yet: %s", error)


class _ImageFolder(StoreDirectory):
    """The folder of an image, below a claimed directory; gone when the store in it is closed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, None)
        self.data_path = folder

    def release(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def drop_foreign(backend: StateBackend, kept: Collection[tuple[int, int]]) -> int:
    """Delete everything of a store but these key groups and states; returns the number of ranges that were deleted.

    Called after :meth:`Images.open_main`, before subtasks begin: groups that the task manager does not own any
    more must not come back when it owns them again.

    Args:
        backend: the store.
        kept: key group and state id of what the subtasks here go on with.
    """
    gaps: list[tuple[bytes, bytes | None]] = []
    position = b""
    for start, stop in sorted(state_bounds(*group_and_state) for group_and_state in set(kept)):
        if position < start:
            gaps.append((position, start))
        position = stop
    gaps.append((position, None))
    dropped = 0
    for begin, end in gaps:
        # A range delete costs later reads a little, so only where there is something.
        if next(iter(backend.scan(begin, end)), None) is not None:
            backend.delete_range(begin, end)
            dropped += 1
    return dropped


def _plain(name: str) -> str:
    """A name, if it can be that of a file in a folder: manifests come from outside.

    Raises:
        StateError: it leads somewhere else.
    """
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise StateError(f"an image names the file {name!r}, which is not a plain file name")
    return name
