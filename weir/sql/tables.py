"""Tables that a prompt reads by their name alone: files, and states of a running job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

from weir.dataflow.builder import Dataflow
from weir.dataflow.connectors import ArrowIpc, Csv, JsonLines, Parquet
from weir.questions.client import connect
from weir.rows.schemas import Nullable
from weir.spelling import did_you_mean_file
from weir.sql.errors import Unplaced, at
from weir.sql.relations import Relation, relation_of
from weir.sql.types import type_words

#: By suffix of a file.
_FILES = {
    ".parquet": Parquet,
    ".csv": Csv,
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".json": JsonLines,
    ".arrow": ArrowIpc,
    ".feather": ArrowIpc,
}
_STATE = "state/"
#: Records of a file that say what its columns are.
_LOOKED_AT = 10_000
#: Keys of a state that are read.
_KEYS_MAX = 1_000_000


def is_table(name: str) -> bool:
    """Whether a name is that of a file or a state."""
    return name.startswith(_STATE) or Path(name).suffix.lower() in _FILES


class OutsideTables:
    """Sources of one dataflow, made once for each name."""

    def __init__(self, flow: Dataflow, address: str, directory: Path) -> None:
        """``address``: HTTP address of a job whose states are asked; ``directory``: where these are put as files."""
        self._flow, self._address, self._directory = flow, address, directory
        self._found: dict[str, Relation] = {}

    def find(self, name: str, node: Any) -> Relation | None:
        """The rows of a table; None: the name is that of no file and no state.

        Args:
            name: as the text has it.
            node: place of messages.

        Raises:
            Unplaced: it cannot be read.
        """
        if not is_table(name):
            if Path(name).suffix and Path(name).is_file():
                raise Unplaced(f"{name!r} is no table; files of tables end in {', '.join(_FILES)}", node)
            return None
        if name not in self._found:
            path = self._state(name, node) if name.startswith(_STATE) else name
            kind = _FILES[Path(path).suffix.lower()]
            schema = _schema_of(path, kind, node)
            step = f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)}_{len(self._found) + 1}"
            with at(node):
                self._found[name] = relation_of(self._flow.source(step, kind(path, schema=schema)))
        return self._found[name]

    def _state(self, name: str, node: Any) -> str:
        """A state of a running job as a file: its keys and values are columns."""
        step, _, state = name.removeprefix(_STATE).rpartition("/")
        if not step or not state:
            raise Unplaced("a state is 'state/STEP/STATE', such as 'state/totals/n'", node)
        with at(node), connect(self._address, patience_s=2.0) as job:
            known = job.states()
            if (step, state) not in known:
                listed = ", ".join(f"'{_STATE}{one}/{other}'" for one, other in known) or "none"
                raise Unplaced(f"the job at {self._address} has no state {name!r}; there are {listed}", node)
            frame = job.state(step, state).range()
        if frame.height > _KEYS_MAX:
            raise Unplaced(f"{name!r} has {frame.height:,} keys; a prompt reads at most {_KEYS_MAX:,}", node)
        for column in ("value", "key"):
            if column in frame.columns and isinstance(frame.schema[column], pl.Struct):
                names = frame[column].struct.fields
                if not set(names) & set(frame.columns):
                    frame = frame.unnest(column)
        path = self._directory / f"state_{len(self._found) + 1}.parquet"
        frame.write_parquet(path)
        return str(path)


def _schema_of(path: str, kind: type, node: Any) -> dict[str, object]:
    """Columns of a file, all of which may be null.

    Raises:
        Unplaced: it is not there, or its columns are of types that no job has.
    """
    try:
        one = _first_file(path)
        if one is None:
            raise Unplaced(f"there is no file {path!r} in {Path.cwd()}{did_you_mean_file(path)}", node)
        if kind is Parquet:
            found = pl.read_parquet_schema(one)
        elif kind is ArrowIpc:
            found = pl.read_ipc_schema(one)
        elif kind is Csv:
            found = dict(
                pl.scan_csv(one, infer_schema_length=_LOOKED_AT, try_parse_dates=True).collect_schema()
            )
        else:
            found = dict(pl.scan_ndjson(one, infer_schema_length=_LOOKED_AT).collect_schema())
    except (OSError, pl.exceptions.PolarsError) as error:
        raise Unplaced(f"{path!r} cannot be read: {str(error).splitlines()[0]}", node) from error
    schema: dict[str, object] = {}
    for name, dtype in found.items():
        if isinstance(dtype, (pl.Object, pl.Null)) or dtype == pl.Null:
            # Nothing says what it is: a text has any value.
            dtype = pl.String()
        if isinstance(dtype, (pl.Categorical, pl.Enum)):
            dtype = pl.String()
        schema[name] = Nullable(dtype)
    if not schema:
        raise Unplaced(f"{path!r} has no columns", node)
    return schema


def _first_file(path: str) -> Path | None:
    """Find one of the files that a path names: itself, or one of a folder or a pattern."""
    whole = Path(path)
    if whole.is_file():
        return whole
    if whole.is_dir():
        return next((each for each in sorted(whole.rglob("*")) if each.is_file()), None)
    if any(sign in path for sign in "*?["):
        base = Path(whole.anchor) if whole.is_absolute() else Path()
        return next(
            (each for each in sorted(base.glob(str(whole.relative_to(base)))) if each.is_file()), None
        )
    return None


def described(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns of rows, and their types."""
    return pl.DataFrame(
        {"column": frame.columns, "type": [type_words(dtype) for dtype in frame.dtypes]},
        schema={"column": pl.String, "type": pl.String},
    )
