"""Columns of Parquet and Arrow files that lie within others: where they are in a file, and how they are taken out."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from weir.errors import GraphError
from weir.operators.sources.files.folder_columns import folder_constants
from weir.rows.nested_paths import Path, parsed_path, path_text


class NoSuchColumnError(Exception):
    """A file has no such column; the message says what it has."""


class AbsentColumnError(NoSuchColumnError):
    """Nothing in the file has the name: a column that may be null is null there."""


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """Where columns are in one file.

    Attributes:
        types: by column, in the order in which they are read, the types of their values.
        paths: of those that are in the file.
        constants: of those that are in the names of the file's folders, the value of all rows; null of those that are
            nowhere.
    """

    types: Mapping[str, pa.DataType]
    paths: Mapping[str, Path]
    constants: Mapping[str, pa.Scalar]

    @classmethod
    def nowhere(cls) -> FilePlaces:
        """Return the places of no file."""
        return cls({}, {}, {})

    @property
    def are_flat(self) -> bool:
        """Return whether none of those that are in the file lies within another column."""
        return all(len(path) == 1 for path in self.paths.values())

    @property
    def top_names(self) -> list[str]:
        """The file's columns that hold them."""
        return list(dict.fromkeys(str(path[0]) for path in self.paths.values()))

    def of_column(self, top_name: str) -> list[str]:
        """The columns that are made of one of the file's."""
        return [name for name, path in self.paths.items() if path[0] == top_name]

    def taken(self, batch: pa.RecordBatch, but: str | None = None) -> pa.RecordBatch:
        """The columns, of rows that have at least what is wanted of the file's columns that hold them.

        ``but``: a column that is left out.
        """
        names = [name for name in self.types if name != but]
        arrays = []
        for name in names:
            if name in self.constants:
                arrays.append(pa.repeat(self.constants[name], batch.num_rows))
            else:
                column, *below = self.paths[name]
                arrays.append(_value_at(batch.column(str(column)), below))
        return pa.RecordBatch.from_arrays(arrays, names=names)


def find_columns(
    file: str, found: pa.Schema, wanted: pa.Schema, given: Mapping[str, Path], required: Collection[str] = ()
) -> FilePlaces:
    """Where columns are in a file.

    They are at the path that was given; else a column of the name, in the name of a folder (``day=2026-11-22``), or at
    the path that the name is. A column that may be null is null where the file does not have it, as files of before it
    was added do not.

    Args:
        file: its path.
        found: of the file.
        wanted: the columns.
        given: paths of some of them.
        required: columns that must be there although they may be null.

    Raises:
        NoSuchColumnError: there is none that must be, or more than one.
        InputError: a folder has a value of another type.
    """
    types: dict[str, pa.DataType] = {}
    paths: dict[str, Path] = {}
    constants = folder_constants(file, wanted, {*given, *found.names})
    for field in wanted:
        name = field.name
        if name in constants:
            types[name] = field.type
        else:
            path = given.get(name) or _own_path(name, found)
            try:
                types[name] = _type_at(found, path, field.type)
            except AbsentColumnError:
                if not field.nullable or name in required:
                    raise
                types[name], constants[name] = field.type, pa.scalar(None, field.type)
            else:
                paths[name] = path
    return FilePlaces(types, paths, constants)


def _own_path(name: str, found: pa.Schema) -> Path:
    if name in found.names:
        return (name,)
    try:
        return parsed_path(name, name)
    except GraphError:
        # A name that is no path is that of a column.
        return (name,)


def _type_at(found: pa.Schema, path: Path, wanted: pa.DataType) -> pa.DataType:
    count = found.names.count(path[0])
    if count != 1:
        only = f"there is no column {path_text(path)} ({wanted}), only {', '.join(found.names)}"
        raise NoSuchColumnError(f"column {path[0]} is there twice") if count else AbsentColumnError(only)
    at: pa.DataType = found.field(path[0]).type
    for number, key in enumerate(path[1:], start=1):
        before = path_text(path[:number])
        if isinstance(key, int):
            if not _is_list(at):
                raise NoSuchColumnError(f"{path_text(path)} is not there: {before} is {at}, not a list")
            at = at.value_type
            continue
        if not pa_types.is_struct(at):
            raise NoSuchColumnError(f"{path_text(path)} is not there: {before} is {at}, not a struct")
        names = [field.name for field in at]
        if names.count(key) != 1:
            at_key = path_text(path[: number + 1])
            if key in names:
                raise NoSuchColumnError(f"{at_key} is twice")
            raise AbsentColumnError(f"{at_key} is not there: {before} has {', '.join(names)}")
        at = at.field(key).type
    return at


def _is_list(data_type: pa.DataType) -> bool:
    return bool(
        pa_types.is_list(data_type)
        or pa_types.is_large_list(data_type)
        or pa_types.is_fixed_size_list(data_type)
    )


def _value_at(array: pa.Array, path: Sequence[str | int]) -> pa.Array:
    """Values at a path below those of a column; null where there are none."""
    for key in path:
        array = _at_place(array, key) if isinstance(key, int) else pc.struct_field(array, key)
    return array


def _at_place(lists: pa.Array, place: int) -> pa.Array:
    if pa_types.is_fixed_size_list(lists.type):
        lists = lists.cast(pa.list_(lists.type.value_type))
    offsets = lists.offsets.to_numpy()
    is_short = np.diff(offsets) <= place
    if lists.null_count:
        is_short |= lists.is_null().to_numpy(zero_copy_only=False)
    return lists.values.take(pa.array(offsets[:-1] + place, mask=is_short))


@dataclass(frozen=True, slots=True)
class WantedLeaves:
    """The Parquet columns that columns are made of.

    Attributes:
        numbers: by column; none: it is not known.
        paths: of all of them, or of columns that hold them, as pyarrow takes them.
    """

    numbers: Mapping[str, Sequence[int]]
    paths: Sequence[str]

    def single(self, names: Collection[str]) -> dict[str, int]:
        """Return those of these columns that are made of one Parquet column with a value for each row."""
        return {name: found[0] for name in names if len(found := self.numbers.get(name, ())) == 1}


def wanted_leaves(found: pa.Schema, places: FilePlaces, leaf_paths: Sequence[str]) -> WantedLeaves:
    """The Parquet columns of a file that are to be read.

    Args:
        found: the file's schema in Arrow.
        places: where the columns are.
        leaf_paths: of the file's Parquet columns, in order; they are those of ``found`` without their nesting.
    """
    count = itertools.count()
    trees = {field.name: _numbered(field.type, count) for field in found}
    if next(count) != len(leaf_paths):
        return WantedLeaves({}, places.top_names)
    below = {name: _below(trees[str(path[0])], path[1:]) for name, path in places.paths.items()}
    paths = dict.fromkeys(leaf_paths[number] for leaves in below.values() for number in leaves.numbers)
    return WantedLeaves(
        {name: leaves.numbers for name, leaves in below.items() if leaves.is_single}, list(paths)
    )


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Numbers of Parquet columns below a value."""

    numbers: list[int]
    children: Mapping[str, _Leaves]
    item: _Leaves | None = None
    #: Whether it is one Parquet column, with a value for each row.
    is_single: bool = False


def _numbered(data_type: pa.DataType, take: Iterator[int]) -> _Leaves:
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if pa_types.is_struct(data_type):
        children = {field.name: _numbered(field.type, take) for field in data_type}
        return _Leaves([n for child in children.values() for n in child.numbers], children)
    if pa_types.is_map(data_type):
        key, value = _numbered(data_type.key_type, take), _numbered(data_type.item_type, take)
        return _Leaves(key.numbers + value.numbers, {})
    if _is_list(data_type):
        item = _numbered(data_type.value_type, take)
        return _Leaves(item.numbers, {}, item)
    return _Leaves([next(take)], {}, is_single=True)


def _below(leaves: _Leaves, path: Path) -> _Leaves:
    in_list = any(isinstance(key, int) for key in path)
    for key in path:
        inner = leaves.item if isinstance(key, int) else leaves.children.get(key)
        if inner is None:
            break
        leaves = inner
    return replace(leaves, is_single=leaves.is_single and not in_list)
