"""What outlives every process: the checkpoint store, the register of the control plane, and the delivered output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.record.job_record import JobRecord
from experiments.simulation.places import MemoryPlace
from experiments.simulation.plan import COUNT
from experiments.simulation.world import Violation, World
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.layout import manifest_path
from weir.errors import CheckpointError, SupersededError
from weir.protocol.checkpoints.manifest import Manifest

#: key, count of the key, source, number of the row in its source.
Result = tuple[int, int, int, int]


class SimulatedStore:
    """The checkpoint store of the job: implements ``control_plane.ports.ManifestStore``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._manifests: dict[str, Manifest] = {}
        #: Entries of stores, by image id.
        self.images: dict[str, Mapping[bytes, bytes]] = {}
        #: Rows that barriers overtook.
        self.files = CheckpointStore(MemoryPlace())
        #: While it is full nothing can be written.
        self.is_full = False

    @property
    def location(self) -> str:
        """For messages."""
        return "the simulated store"

    def write_manifest(self, manifest: Manifest) -> str:
        """Create-if-absent; see ``CheckpointStore``.

        Raises:
            CheckpointError: no room.
            SupersededError: there is one of this number.
            Violation: it is no consistent cut.
        """
        self._check(manifest)
        path = manifest_path(manifest.checkpoint_id)
        old = self._manifests.get(path)
        if old is not None:
            if self._world.broken != "create":
                raise SupersededError(f"manifest {manifest.checkpoint_id} exists")
            if old != manifest:
                raise Violation(f"manifest {manifest.checkpoint_id} was overwritten")
        self._manifests[path] = manifest
        self._world.counts["checkpoints"] += 1
        return path

    def _check(self, manifest: Manifest) -> None:
        if self.is_full:
            raise CheckpointError("no space left on device")
        for part in manifest.parts:
            for value in part.operators.values():
                if value.get("generation", manifest.generation) != manifest.generation:
                    raise Violation(
                        f"manifest {manifest.checkpoint_id} of generation {manifest.generation} has a part of "
                        f"{part.subtask} that generation {value['generation']} made"
                    )
            for image in part.images:
                if image.image_id not in self.images:
                    raise CheckpointError(f"image {image.image_id} is gone")
        # Stages whose steps keep nothing tell of no groups.
        for stage in (COUNT,):
            parts = [part for part in manifest.parts if part.subtask.stage_index == stage]
            owned = sorted(group for part in parts for group in part.groups)
            if owned != list(range(manifest.max_parallelism)):
                raise Violation(
                    f"manifest {manifest.checkpoint_id}, stage {stage}: groups {owned}: each must be there once"
                )

    def read_manifest(self, path: str) -> Manifest:
        """A manifest.

        Raises:
            CheckpointError: it is not there.
        """
        if path not in self._manifests:
            raise CheckpointError(f"there is no {path}")
        return self._manifests[path]

    def latest(self) -> Manifest | None:
        """The newest checkpoint."""
        return self._manifests[max(self._manifests)] if self._manifests else None

    def newest_id(self) -> int:
        """The highest number of a checkpoint; 0: there is none."""
        return max((manifest.checkpoint_id for manifest in self._manifests.values()), default=0)

    def copy_savepoint(self, manifest: Manifest, uri: str) -> str:
        """Note that there is one.

        Raises:
            CheckpointError: no room.
            Violation: it is no consistent cut.
        """
        self._check(manifest)
        self._world.counts["savepoints"] += 1
        return uri

    def expire(self, retained: int, oldest_in_flight: int | None = None) -> object:
        """Keep the newest ones."""
        for path in sorted(self._manifests)[:-retained]:
            del self._manifests[path]
        latest = self.latest()
        manifests = self._manifests.values()
        named = {image.image_id for each in manifests for part in each.parts for image in part.images}
        for image_id in list(self.images):
            if (
                latest is not None
                and image_id not in named
                and checkpoint_of(image_id) < latest.checkpoint_id
            ):
                del self.images[image_id]
        return None

    def remove(self) -> None:
        """Delete all."""
        self._manifests.clear()


def image_name(store_id: str, checkpoint_id: int, number: int) -> str:
    """The id of an image."""
    return f"{store_id}-{checkpoint_id}-{number}"


def checkpoint_of(image_id: str) -> int:
    """The checkpoint for which an image was taken."""
    return int(image_id.split("-")[-2])


@dataclass
class Register:
    """What etcd or a file holds for the control plane: its record, and who leads.

    Without etcd nobody can take over from a control plane that is only paused: it holds a lock on a file.
    """

    world: World
    is_etcd: bool
    #: Of the control plane that leads.
    leader: object = None
    data: bytes | None = None
    #: While it is, nothing is written, or what is written is not confirmed.
    is_out_of_order: bool = False
    _looked_at: bytes | None = None
    _is_over: bool = False

    @property
    def record(self) -> JobRecord | None:
        """What was saved last."""
        return None if self.data is None else JobRecord.from_bytes(self.data, "the register")

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended."""
        if self.data is not self._looked_at:
            record = self.record
            self._is_over, self._looked_at = record is not None and record.is_over, self.data
        return self._is_over

    def save(self, leader: object, data: bytes) -> None:
        """Replace the record.

        Raises:
            SupersededError: another control plane leads.
            CheckpointError: it is out of order.
        """
        self.world.moment("record", ())
        if leader is not self.leader and self.world.broken != "commit":
            raise SupersededError("the record was not written: another control plane leads")
        if self.is_out_of_order:
            # A file is renamed last of all; etcd may have taken what it does not confirm.
            if self.is_etcd and self.world.rng.random() < 0.5:
                self.data = data
            raise CheckpointError("the record was not written: the register is out of order")
        self.data = data


@dataclass
class Output:
    """A directory of a transactional file sink. A file is delivered by renaming it."""

    world: World
    #: By name: generation of the writer, results.
    _pending: dict[str, tuple[int, list[Result]]] = field(default_factory=dict)
    #: Name, order (checkpoint), results.
    delivered: list[tuple[str, int, list[Result]]] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _seen: dict[tuple[int, int], str] = field(default_factory=dict)

    def open(self, name: str, generation: int) -> list[Result]:
        """Create a pending file; its writer appends to the list.

        Raises:
            Violation: there is one of this name, or was.
        """
        if name in self._names:
            raise Violation(f"{name} is opened again")
        if self.world.broken != "names":
            self._names.add(name)
        results: list[Result] = []
        self._pending[name] = (generation, results)
        return results

    def deliver(self, name: str, order: int, *, who: str) -> None:
        """Rename a pending file; harmless for one that is delivered."""
        if name not in self._pending:
            return
        _, results = self._pending.pop(name)
        self.world.say(who, f"delivers {name}: {len(results)} results")
        self.delivered.append((name, order, results))
        for _, _, source, number in results:
            other = self._seen.setdefault((source, number), name)
            if other != name:
                raise Violation(f"row {number} of source {source} is in {other} and in {name}")

    def drop_older(self, generation: int) -> None:
        """Delete what earlier generations left pending."""
        for name in [name for name, (writer, _) in self._pending.items() if writer < generation]:
            del self._pending[name]

    def check(self, expected: dict[int, int], *, in_order: bool, orders_files: bool) -> None:
        """Compare with the computation without faults.

        Args:
            expected: number of rows of each key.
            in_order: one subtask delivers all results of a key, so that the order of delivery counts.
            orders_files: the results of a key come to a subtask in order.

        Raises:
            Violation: something is lost, doubled or out of order.
        """
        by_key: dict[int, list[tuple[int, int]]] = {}
        for name, order, results in self.delivered:
            before: dict[int, int] = {}
            for key, count, _, _ in results:
                if orders_files and count <= before.get(key, 0):
                    raise Violation(f"{name}: count {count} of key {key} follows {before[key]}")
                before[key] = count
                by_key.setdefault(key, []).append((order, count))
        for key, rows in expected.items():
            found = by_key.get(key, [])
            counts = [count for _, count in found]
            # Files of several subtasks have no order among them: one may be labelled with a checkpoint that a rescale
            # made everybody give up.
            ordered = counts if in_order else sorted(counts)
            if ordered != list(range(1, rows + 1)):
                raise Violation(f"key {key}: {rows} rows, but the counts delivered are {ordered}")
