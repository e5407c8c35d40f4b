"""The checkpoint store of a job: manifests, the files that they name, savepoints, and what may be deleted.

::

    <checkpoint_uri>/<job name>/
      manifests/000000000017.json          created once, never changed
      files/000000000017/<store id>/...    published for checkpoint 17

Task managers publish and fetch files; manifests are written, and files deleted, by the control plane that holds
the leadership only. A savepoint is the same layout at the path that the user named. See docs/design/0002.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import orjson

from weir.checkpoints.checkpoint_files import CheckpointFiles
from weir.checkpoints.digests import sealed, unsealed
from weir.checkpoints.files import FilePlace, Listed, check_path
from weir.checkpoints.layout import (
    FILES,
    MANIFESTS,
    SINKS,
    checkpoint_of,
    divided,
    files_folder,
    imported_path,
    is_manifest,
    manifest_path,
)
from weir.checkpoints.opened_place import open_place
from weir.errors import CheckpointError, SupersededError
from weir.protocol.checkpoints.manifest import (
    FORMAT_VERSION,
    Manifest,
    StoreImage,
    manifest_from_json,
    manifest_to_json,
)
from weir.protocol.checkpoints.retention import expired
from weir.protocol.database_run import parse_run

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expired:
    """What an expiry deleted."""

    manifests: int = 0
    files: int = 0
    bytes: int = 0


class CheckpointStore(CheckpointFiles):
    """A job's checkpoint store; :meth:`open` and :meth:`open_savepoint` make it. Any thread may call its methods."""

    def __init__(self, place: FilePlace) -> None:
        super().__init__(place)
        #: Paths that a manifest names, by its checkpoint: manifests never change.
        self._named: dict[int, frozenset[str]] = {}

    @classmethod
    def open(cls, uri: str, job_name: str) -> CheckpointStore:
        """The store of a job below ``checkpoint_uri``: a directory, or a URI that ``pyarrow.fs`` understands.

        Raises:
            CheckpointError: the URI is not understood, or the name of the job cannot be that of a folder.
        """
        if not job_name or job_name in (".", "..") or "/" in job_name or "\0" in job_name:
            raise CheckpointError(f"job name {job_name!r} cannot name a folder of the checkpoint store")
        return cls(open_place(uri, job_name))

    @classmethod
    def open_savepoint(cls, uri: str) -> CheckpointStore:
        """The savepoint at a path; the folder of a job in a checkpoint store is accepted too.

        Raises:
            CheckpointError: the URI is not understood.
        """
        return cls(open_place(uri))

    @classmethod
    def open_checkpoint(cls, uri: str) -> tuple[CheckpointStore, str | None]:
        """What a user names to start from: a savepoint, the folder of a job, or one manifest in either of them.

        Returns:
            The store, and the manifest's path below it; None: the latest one is meant.

        Raises:
            CheckpointError: the URI is not understood.
        """
        path, mark, options = uri.partition("?")
        named = divided(path)
        if named is None:
            return cls.open_savepoint(uri), None
        root, manifest = named
        return cls.open_savepoint(f"{root}{mark}{options}"), manifest

    # --- manifests ---------------------------------------------------------------------------------------------

    def write_manifest(self, manifest: Manifest) -> str:
        """Commit a checkpoint: its manifest appears whole, durably, and only if there is none of its number.

        Looks first whether the files are there that neither this checkpoint nor the latest manifest brought.

        Returns:
            Its path below the store.

        Raises:
            SupersededError: somebody committed this number already.
            CheckpointError: a file is missing, or the place failed.
        """
        path = manifest_path(manifest.checkpoint_id)
        self._check_files(manifest)
        data = sealed(orjson.dumps(manifest_to_json(manifest)))
        if not self._do(path, lambda: self._place.create(path, data)):
            raise SupersededError(
                f"checkpoint store {self.location}, file {path}: it exists already, so another control plane has "
                "committed this checkpoint; end one of the two"
            )
        self._named[manifest.checkpoint_id] = frozenset(manifest.paths)
        return path

    def _check_files(self, manifest: Manifest) -> None:
        """A task manager that missed news of a commit could name a file that has expired since."""
        latest = self._named[max(self._named)] if self._named else frozenset()
        own = files_folder(manifest.checkpoint_id) + "/"
        doubtful = sorted(path for path in manifest.paths - latest if not path.startswith(own))
        sizes = self._do(files_folder(manifest.checkpoint_id), lambda: self._place.sizes(doubtful))
        for path, size in zip(doubtful, sizes, strict=True):
            if size is None:
                raise CheckpointError(
                    f"checkpoint store {self.location}, file {path}: checkpoint {manifest.checkpoint_id} needs it, "
                    "but it does not exist; the checkpoint is given up"
                )

    def read_manifest(self, path: str) -> Manifest:
        """The manifest at a path below the store.

        Raises:
            CheckpointError: it is absent, damaged, or of a newer version of Weir.
        """
        manifest = self.look_at_manifest(path)
        self._named[manifest.checkpoint_id] = frozenset(manifest.paths)
        return manifest

    def look_at_manifest(self, path: str) -> Manifest:
        """Read a manifest, as :meth:`read_manifest` does, for whoever goes on with nothing that it names."""
        data = self._do(path, lambda: self._place.read(check_path(path)))
        try:
            document, has_digest = unsealed(data)
            value = orjson.loads(document)
            manifest = manifest_from_json(value)
            if not has_digest and value["format_version"] > 1:
                raise CheckpointError("its digest is gone, so it is damaged")
        except (ValueError, CheckpointError) as error:
            raise CheckpointError(f"checkpoint store {self.location}, file {path}: {error}") from error
        return manifest

    def check_presence(self, manifest: Manifest) -> None:
        """Look whether each file of a checkpoint is there, in its size; ``weir plan`` asks it instead of a start.

        Raises:
            CheckpointError: one is absent or has another size, so that no job can start from it. Or the place failed.
        """
        sizes_by_path = {file.path: file.size_bytes for file in manifest.files()}
        paths = sorted(sizes_by_path)
        found = self._do(MANIFESTS, lambda: self._place.sizes(paths))
        for path, size in zip(paths, found, strict=True):
            if size != sizes_by_path[path]:
                state = "does not exist" if size is None else f"has {size:,} bytes"
                raise CheckpointError(
                    f"checkpoint store {self.location}, file {path}: checkpoint {manifest.checkpoint_id} needs it with "
                    f"{sizes_by_path[path]:,} bytes, but it {state}; start from another checkpoint"
                )

    def list_manifests(self) -> list[str]:
        """Paths of all manifests, the oldest first; damaged ones too."""
        listed = self._do(MANIFESTS, lambda: self._place.files(MANIFESTS))
        return sorted(file.path for file in listed if is_manifest(file.path))

    def latest(self) -> Manifest | None:
        """The newest checkpoint.

        Raises:
            CheckpointError: its manifest is damaged, or of a newer version of Weir: an older one counts only if it is
                named. Or the place failed.
        """
        paths = self.list_manifests()
        if not paths:
            return None
        try:
            return self.read_manifest(paths[-1])
        except CheckpointError as error:
            self._refuse_newer(paths[-1], error)
            mend = f"; to go on from the one before it, name {self.location}/{paths[-2]}" if paths[1:] else ""
            raise CheckpointError(f"{error}{mend}") from error

    def newest_id(self) -> int:
        """The highest number of a checkpoint, whole or damaged; 0: there is none."""
        return max((checkpoint_of(path) or 0 for path in self.list_manifests()), default=0)

    def _refuse_newer(self, path: str, error: CheckpointError) -> None:
        """Going on from an older checkpoint would hide what a newer version of Weir has done since."""
        data = self._do(path, lambda: self._place.read(path))
        try:
            version = orjson.loads(data)["format_version"]
        except (ValueError, TypeError, KeyError):
            return
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise error

    # --- retention ---------------------------------------------------------------------------------------------

    def expire(
        self, retained: int, oldest_in_flight: int | None = None, keep: Collection[int] = ()
    ) -> Expired:
        """Delete old manifests, then the files that nobody needs; called by the leader only.

        ``weir.protocol.checkpoints.retention`` decides. Manifests go first, so a crash leaves files too many, never too
        few; the next call removes them, and the files of checkpoints that failed.

        Args:
            retained: this many of the newest readable manifests stay.
            oldest_in_flight: number of the oldest checkpoint that is being made.
            keep: checkpoints that stay whatever their age, because a savepoint is made of them, for example.

        Raises:
            CheckpointError: a manifest is of a newer version of Weir, or the place failed.
        """
        paths = {
            number: path for path in self.list_manifests() if (number := checkpoint_of(path)) is not None
        }
        manifests = {number: named for number in paths if (named := self._names(number)) is not None}
        folders = {
            number: f"{FILES}/{name}"
            for name in self._do(FILES, lambda: self._place.folders(FILES))
            if (number := checkpoint_of(f"{FILES}/{name}")) is not None
        }
        newest = max(manifests, default=0)
        listed: dict[int, list[Listed]] = {number: [] for number in folders if number < newest}
        # All at once: a request for each checkpoint, one after the other, took most of the time in an object store.
        for file in self._do(FILES, lambda: self._place.files(FILES)) if listed else ():
            if (number := checkpoint_of(file.path)) in listed:
                listed[number].append(file)
        sizes = {file.path: file.size_bytes for files in listed.values() for file in files}
        in_flight = {*keep, *(() if oldest_in_flight is None else (oldest_in_flight,))}
        gone = expired(manifests, retained, directories=folders, in_flight=in_flight, files=sizes)
        stay = manifests.keys() - set(gone.manifests)
        damaged = [number for number in paths if number not in manifests and number < min(stay, default=0)]
        self._do(MANIFESTS, lambda: self._place.delete([paths[n] for n in (*gone.manifests, *damaged)]))
        self._named = {number: named for number, named in self._named.items() if number in stay}
        for number in gone.directories:
            self._do(folders[number], functools.partial(self._place.delete_folder, folders[number]))
        doomed = sorted(sizes.keys() & set(gone.paths))
        if doomed:
            self._do(doomed[0], lambda: self._place.delete(doomed))
        deleted = [*doomed, *(file.path for number in gone.directories for file in listed[number])]
        return Expired(len(gone.manifests) + len(damaged), len(deleted), sum(sizes[path] for path in deleted))

    def _names(self, number: int) -> frozenset[str] | None:
        """Paths that a manifest names; None: it is damaged."""
        if number not in self._named:
            path = manifest_path(number)
            try:
                self.read_manifest(path)
            except CheckpointError as error:
                self._refuse_newer(path, error)
                return None
        return self._named[number]

    def remove(self) -> None:
        """Delete all checkpoints of the job, manifests first; called when it has ended and needs none any more."""
        paths = self.list_manifests()
        self._do(MANIFESTS, lambda: self._place.delete(paths))
        for folder in (SINKS, FILES, MANIFESTS):
            self._do(folder, functools.partial(self._place.delete_folder, folder))
        self._named.clear()

    # --- savepoints --------------------------------------------------------------------------------------------

    def copy_savepoint(self, manifest: Manifest, uri: str) -> str:
        """Make a savepoint of a checkpoint: everything it needs, at a path of its own. Blocks for the copying.

        The checkpoint must not expire meanwhile (``keep`` of :meth:`expire`).

        Returns:
            Path of its manifest below ``uri``, written last: a savepoint without manifest is none.

        Raises:
            CheckpointError: there is a savepoint already, or one of the places failed.
        """
        target = CheckpointStore.open_savepoint(uri)
        if target.list_manifests():
            raise CheckpointError(f"savepoint {target.location} exists already; choose another path")
        paths = sorted(manifest.paths)
        self.copy_to([(check_path(path), path) for path in paths], target)
        return target.write_manifest(replace(manifest, is_savepoint=True))

    def import_savepoint(
        self, savepoint: CheckpointStore, manifest: Manifest, checkpoint_id: int
    ) -> Manifest:
        """Bring a savepoint's files here, so that the job can start from it as from a checkpoint of its own.

        Args:
            savepoint: where it is.
            manifest: of the savepoint.
            checkpoint_id: the number that it gets here.

        Returns:
            The manifest with the paths that the files have here. The caller adapts it to the job and writes it.

        Raises:
            CheckpointError: one of the places failed.
        """
        moved = {path: imported_path(checkpoint_id, check_path(path)) for path in manifest.paths}
        savepoint.copy_to(sorted(moved.items()), self)
        return replace(
            manifest,
            checkpoint_id=checkpoint_id,
            is_savepoint=False,
            parts=tuple(
                replace(
                    part,
                    images=tuple(_moved_image(image, moved, manifest.checkpoint_id) for image in part.images),
                    rows=tuple(replace(file, path=moved[file.path]) for file in part.rows),
                )
                for part in manifest.parts
            ),
        )


def _moved_image(image: StoreImage, moved: Mapping[str, str], checkpoint_id: int) -> StoreImage:
    files = {name: replace(file, path=moved[file.path]) for name, file in image.files.items()}
    # Timestamps in a database go on where they were; the checkpoint has number 1 here.
    database = str(parse_run(image.database).after(checkpoint_id)) if image.database else ""
    return StoreImage(image.image_id, files, database)
