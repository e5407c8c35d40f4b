"""What outlives every process: the checkpoint store, the register of the control plane, and the delivered output."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.simulation.world import Violation, World
from weir.errors import CheckpointError, FencedError
from weir.protocol.manifest import Manifest

#: key, count of the key, source, number of the row in its source.
Result = tuple[int, int, int, int]


class ManifestStore:
    """Manifests by id, created and never overwritten."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._manifests: dict[int, Manifest] = {}
        #: While it is full nothing can be written.
        self.is_full = False

    def create(self, manifest: Manifest) -> None:
        """Create-if-absent.

        Raises:
            CheckpointError: there is one of this id, or no room.
        """
        if self.is_full:
            raise CheckpointError("no space left on device")
        for part in manifest.parts:
            if part.operators["generation"] != manifest.generation:
                raise Violation(
                    f"manifest {manifest.checkpoint_id} of generation {manifest.generation} has a part of "
                    f"{part.subtask} that generation {part.operators['generation']} made"
                )
        owners = [group for part in manifest.parts for group in part.groups]
        if sorted(owners) != list(range(manifest.max_parallelism)):
            raise Violation(
                f"manifest {manifest.checkpoint_id}: groups {sorted(owners)}: each must be there once"
            )
        old = self._manifests.get(manifest.checkpoint_id)
        if old is not None:
            if self._world.broken != "create":
                raise CheckpointError(f"manifest {manifest.checkpoint_id} exists")
            if old != manifest:
                raise Violation(f"manifest {manifest.checkpoint_id} was overwritten")
        self._manifests[manifest.checkpoint_id] = manifest

    def read(self, checkpoint_id: int) -> Manifest:
        """A manifest that exists."""
        return self._manifests[checkpoint_id]

    @property
    def last_id(self) -> int:
        """The highest id in the store; 0 without any."""
        return max(self._manifests, default=0)


@dataclass
class Register:
    """What etcd or a file holds for the control plane: changes are atomic.

    Without etcd nobody can take over from a control plane that is only paused (a lock on a file), and then the newest
    manifest in the store is where a job starts, whoever wrote it.
    """

    world: World
    store: ManifestStore
    #: The generation is compared with every commit.
    is_fenced: bool
    generation: int = 0
    #: The latest complete checkpoint; 0: none.
    checkpoint_id: int = 0
    is_finished: bool = False

    def begin_generation(self, expected: int | None) -> tuple[int, int]:
        """A deployment begins: gives its generation and its checkpoint; earlier generations commit no more.

        Raises:
            FencedError: ``expected`` is not the generation in force: another control plane took over.
        """
        if expected is not None and expected != self.generation:
            raise FencedError(f"generation {expected} was replaced by {self.generation}")
        self.generation += 1
        if not self.is_fenced:
            self.checkpoint_id = self.store.last_id
        return self.generation, self.checkpoint_id

    def commit(self, generation: int, checkpoint_id: int) -> None:
        """A checkpoint is complete.

        Raises:
            FencedError: a newer generation has begun.
        """
        if self.is_fenced and generation != self.generation and self.world.broken != "commit":
            raise FencedError(f"generation {generation} was replaced by {self.generation}")
        if checkpoint_id < self.checkpoint_id + self.is_fenced:
            raise Violation(f"checkpoint {checkpoint_id} is complete after {self.checkpoint_id}")
        self.checkpoint_id = checkpoint_id
        self.world.counts["checkpoints"] += 1


@dataclass
class Output:
    """A directory of a transactional file sink. A file is delivered by renaming it."""

    world: World
    #: By name: generation of the writer, results.
    _pending: dict[str, tuple[int, list[Result]]] = field(default_factory=dict)
    #: Name, order (checkpoint), results.
    delivered: list[tuple[str, int, list[Result]]] = field(default_factory=list)
    _seen: dict[tuple[int, int], str] = field(default_factory=dict)

    def open(self, name: str, generation: int) -> list[Result]:
        """Create a pending file; its writer appends to the list."""
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

    def check(self, expected: dict[int, int], *, in_order: bool) -> None:
        """Compare with the computation without faults.

        Args:
            expected: number of rows of each key.
            in_order: one subtask delivers all results of a key, so that the order of delivery counts.

        Raises:
            Violation: something is lost, doubled or out of order.
        """
        by_key: dict[int, list[tuple[int, int]]] = {}
        for name, order, results in self.delivered:
            before: dict[int, int] = {}
            for key, count, _, _ in results:
                if count <= before.get(key, 0):
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
