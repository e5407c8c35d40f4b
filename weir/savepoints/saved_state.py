"""``weir.read_state``: the state of a job that is stopped, as frames."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa

from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.clock import SystemClock
from weir.config.stores import RocksDbConfig
from weir.dataflow.builder import Dataflow
from weir.errors import CheckpointError, GraphError
from weir.operators.queries.answering import AskedState, answer_range, asked_state
from weir.plan.graph import LogicalGraph
from weir.plan.savepoint_fit import fitted_to
from weir.plan.stages import physical_graph
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.database_run import databases_of
from weir.protocol.queries import ARROW_ROWS_MAX, Question
from weir.questions.askable import askable, asked_pairs
from weir.savepoints.changes import Verdict, step_changes
from weir.savepoints.checkpoint_reading import CheckpointReading, OpenCheckpoint
from weir.spelling import did_you_mean
from weir.state.images.image_stores import Images

#: The column of values where a key column has the state's name already.
_VALUE = "value"
#: The column of values of the earlier of two savepoints.
_BEFORE = "before"
_SCRATCH = ".weir-state-"


def read_state(savepoint: str | os.PathLike[str], flow: Dataflow) -> SavedState:
    """Open the state of a job that is stopped: of a savepoint, or of the latest checkpoint in a job's folder.

    Example::

        with weir.read_state("savepoints/monday", build("in.jsonl")) as state:
            state["seen"]  # a Polars frame: the key columns, and a column for the state

    Args:
        savepoint: what ``weir run --from-savepoint`` takes: a savepoint, the folder of a job, or one manifest.
        flow: the job, as it was or changed so that it could start from there: it says what the bytes mean.

    Raises:
        CheckpointError: there is no savepoint, a file of it is missing or damaged, or the job could not start from it.
        GraphError: the dataflow is not valid.
    """
    if not isinstance(flow, Dataflow):
        raise GraphError(
            f"read_state needs the job's weir.Dataflow, not {type(flow).__name__}; call your build()"
        )
    return SavedState(os.fspath(savepoint), flow.build_local())


class SavedState:
    """The keyed state in a savepoint; a context manager, since files are opened while it is read.

    Args:
        place: of the savepoint.
        graph: the job, whose steps say what the bytes mean.

    Raises:
        CheckpointError: as :func:`read_state`.
    """

    def __init__(self, place: str, graph: LogicalGraph) -> None:
        store, manifest = open_savepoint(place)
        # What the job does not have any more is not asked for.
        changes = step_changes(graph, manifest, allow_dropped=True)
        refused = [
            f"step {each.step!r}: {each.reason}" for each in changes if each.verdict is Verdict.REFUSED
        ]
        if refused:
            raise CheckpointError(
                f"the job could not start from checkpoint {manifest.checkpoint_id} at {store.location}: "
                + "; ".join(refused)
            )
        self._graph, self.manifest = fitted_to(graph, manifest, allow_dropped=True)
        self._steps = {
            node.name: node for stage in physical_graph(self._graph).stages for node in stage.nodes
        }
        self._clock = Moment(manifest.created_ms)
        self._open = ExitStack()
        self._checkpoint = self._open.enter_context(opened(store, self.manifest))
        # Who reads one frame need not think of files.
        weakref.finalize(self, self._open.close)

    @property
    def states(self) -> list[tuple[str, str]]:
        """Steps and their states that can be read, in order; not those that the job had not then."""
        return [
            pair
            for pair in asked_pairs(askable(self._graph))
            if self._asked(*pair).job_name in self.manifest.state_ids
        ]

    def _asked(self, step: str, state: str) -> AskedState:
        return asked_state(self._graph, Question(step, state), self._steps)

    def __getitem__(self, name: str) -> pl.DataFrame:
        """Read all of a state, by its step or, where the step has several, by ``step/state``; ordered by a single key.

        Returns:
            The key columns under their names, and a column with the name of the state (``value`` if a key column has
            that name). A state with several entries of a key has lists; see docs/queries.md.

        Raises:
            KeyError: there is no such state, or the step has several.
        """
        step, state = self._pair(name)
        return pl.concat(self.frames(step, state))

    def frames(self, step: str, state: str) -> Iterator[pl.DataFrame]:
        """Read a state in frames of up to 100,000 rows or 16 MiB; at least one.

        Raises:
            KeyError: there is no such state.
            StateError: a file is damaged.
        """
        step, state = self._pair(f"{step}/{state}")
        asked = self._asked(step, state)
        reading = CheckpointReading(self._checkpoint, step, state, asked.format.ttl, self._clock)
        number = self.manifest.state_ids[asked.job_name]
        groups, after = range(asked.max_parallelism), b""
        while True:
            question = Question(
                step, state, consistency="checkpoint", limit=ARROW_ROWS_MAX, after=after.hex(), arrow=True
            )
            page = answer_range(asked, reading, number, groups, question, lambda: None)
            yield _frame(asked, state, list(page.batches()))
            if page.after is None:
                return
            after = page.after

    def diff(self, before: SavedState, name: str) -> pl.DataFrame:
        """What is not as it was in an earlier savepoint of the job, of one state.

        Returns:
            The key columns, the value ``before`` and the value now under the state's name; null where there is none.

        Raises:
            KeyError: there is no such state.
        """
        now, then = self[name], before[name]
        # The state is the last column; a key column may have its name.
        *keys, value = now.columns
        then = then.rename({then.columns[-1]: _BEFORE})
        joined = then.join(now, on=keys, how="full", coalesce=True, nulls_equal=True)
        return joined.filter(pl.col(_BEFORE).ne_missing(pl.col(value))).sort(keys)

    def _pair(self, name: str) -> tuple[str, str]:
        there_are = {"/".join(pair): pair for pair in self.states}
        of_step = [pair for pair in there_are.values() if pair[0] == name]
        if name in there_are:
            return there_are[name]
        if len(of_step) == 1:
            return of_step[0]
        if of_step:
            raise KeyError(
                f"step {name!r} has several states: {', '.join('/'.join(pair) for pair in of_step)}"
            )
        known = [step for step, _ in there_are.values()] + list(there_are)
        raise KeyError(f"there is no state {name!r}{did_you_mean(name, known)}")

    def __enter__(self) -> SavedState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; safe to call twice."""
        self._open.close()


class Moment(SystemClock):
    """The wall clock stands where the savepoint was made: what had not expired then is there."""

    def __init__(self, at_ms: int) -> None:
        self._at_us = at_ms * 1000

    def now_us(self) -> int:
        """The moment of the savepoint, epoch µs."""
        return self._at_us


def open_savepoint(place: str) -> tuple[CheckpointStore, Manifest]:
    """The store of a savepoint and what is in it.

    Raises:
        CheckpointError: there is none, a file is missing, or its state is in a database.
    """
    store, path = CheckpointStore.open_checkpoint(place)
    manifest = store.latest() if path is None else store.read_manifest(path)
    if manifest is None:
        raise CheckpointError(f"there is no savepoint or checkpoint at {store.location}")
    store.check_presence(manifest)
    if databases_of(image.database for part in manifest.parts for image in part.images):
        raise CheckpointError(
            f"the state of checkpoint {manifest.checkpoint_id} at {store.location} is in a database: read it there, or "
            "ask the running job (docs/queries.md)"
        )
    return store, manifest


@contextmanager
def opened(store: CheckpointStore, manifest: Manifest) -> Iterator[OpenCheckpoint]:
    """The images of a savepoint, opened read-only from a scratch directory; closed at the end.

    Raises:
        CheckpointError: an image cannot be fetched.
        StateError: the scratch directory cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=_beside(store)) as scratch:
        images = Images(store, Path(scratch) / "images", RocksDbConfig())
        images.register(image for part in manifest.parts for image in part.images)
        # It claims the directory in which images are opened; nothing is written to it.
        with closing(images.open_main(None)), closing(OpenCheckpoint(manifest, images)) as checkpoint:
            yield checkpoint


def _beside(store: CheckpointStore) -> str | None:
    """A directory on the file system of the savepoint, where its files are links and no copies; None: any."""
    folder = Path(store.location).parent
    try:
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder):
            return str(folder)
    except OSError:
        return None


def _frame(asked: AskedState, state: str, batches: list[pa.RecordBatch]) -> pl.DataFrame:
    """A page with the key columns under their names."""
    frame = pl.DataFrame(pa.Table.from_batches(batches))
    names = asked.keys.names
    frame = frame.unnest("key") if len(names) > 1 else frame.rename({"key": names[0]})
    return frame if state in names else frame.rename({_VALUE: state})
