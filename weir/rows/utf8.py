"""Texts whose bytes are not UTF-8: Arrow takes them as they are, and whoever reads them later fails.

Checked where rows come in. Plain ASCII, which most texts are, costs one look at their bytes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

#: Width of the offsets of texts.
_OFFSETS: dict[pa.DataType, type] = {pa.string(): np.int32, pa.large_string(): np.int64}
_BEYOND_ASCII = 0x80


@lru_cache(maxsize=1_000)
def has_texts(dtype: pa.DataType) -> bool:
    """Return whether there are texts in values of this type, at whatever depth."""
    if isinstance(dtype, pa.BaseExtensionType):
        return has_texts(dtype.storage_type)
    if pat.is_dictionary(dtype):
        return has_texts(dtype.value_type)
    if dtype.num_fields:
        return any(has_texts(dtype.field(index).type) for index in range(dtype.num_fields))
    return bool(pat.is_string(dtype) or pat.is_large_string(dtype) or pat.is_string_view(dtype))


def wrong_texts(batch: pa.RecordBatch, known: pa.RecordBatch | None = None) -> dict[int, str]:
    """Rows with a text that is not UTF-8, and the column, or the path in it, of the first such text of the row.

    Args:
        batch: the rows.
        known: rows of which all texts are right: columns that share their memory are not looked at.
    """
    seen = set() if known is None else {_memory(c) for c in known.columns if has_texts(c.type)}
    found: dict[int, str] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not has_texts(field.type) or (seen and _memory(column) in seen) or are_utf8(column):
            continue
        for name, wrong in _places(column, str(field.name)):
            for row in np.flatnonzero(wrong).tolist():
                found.setdefault(row, name)
    return found


def _memory(column: pa.Array) -> tuple[int, ...]:
    return tuple(0 if buffer is None else buffer.address for buffer in column.buffers()[1:])


def are_utf8(column: pa.Array) -> bool:
    """Whether all texts in an array are UTF-8; also those that no value shows, as over a network they are read, too."""
    width = _OFFSETS.get(column.type)
    if width is not None and _are_right_together(column, width):
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _are_right_together(texts: pa.Array, width: type) -> bool:
    """Return whether the texts are UTF-8 by a look at all their bytes at once; False: it is not known."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return True
    all_ends: np.ndarray = np.frombuffer(offsets, dtype=width)
    ends = all_ends[texts.offset : texts.offset + len(texts) + 1]
    start, stop = int(ends[0]), int(ends[-1])
    used: np.ndarray = np.frombuffer(data, dtype=np.uint8)[start:stop]
    if not used.size or int(used.max()) < _BEYOND_ASCII:
        return True
    from weir.rows.utf8_kernels import begin_characters, right_bytes

    right = right_bytes(used)
    if right < 0:
        return False
    try:
        used[right:].tobytes().decode()
    except UnicodeDecodeError:
        return False
    # An empty text may begin within a character; then it is not known, either.
    starts = ends[: np.searchsorted(ends, width(stop))]
    return bool(begin_characters(np.frombuffer(data, dtype=np.uint8), starts))


def _places(column: pa.Array, name: str) -> list[tuple[str, np.ndarray]]:
    """Return for each path of texts in an array in which of its values they are wrong; bool, shape (values,)."""
    dtype = column.type
    if isinstance(dtype, pa.BaseExtensionType):
        return _places(column.storage, name)
    if not has_texts(dtype):
        return []
    if pat.is_dictionary(dtype):
        indices = column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        there = column.indices.is_valid().to_numpy(zero_copy_only=False)
        if not len(column.dictionary):
            return []
        return [(path, wrong[indices] & there) for path, wrong in _places(column.dictionary, name)]
    if pat.is_struct(dtype):
        inner = [(column.field(index), f"{name}.{field.name}") for index, field in enumerate(dtype)]
        return [place for values, path in inner for place in _places(values, path)]
    if pat.is_fixed_size_list(dtype):
        size = dtype.list_size
        values = column.values.slice(column.offset * size, len(column) * size)
        places = _places(values, name)
        return [(path, np.any(wrong.reshape(len(column), size), axis=1)) for path, wrong in places]
    if dtype.num_fields:
        ends = column.offsets.to_numpy()
        return [(path, _in_lists(wrong, ends)) for path, wrong in _places(column.values, name)]
    wrong = np.array([text.is_valid and not _is_right(text) for text in column], dtype=np.bool_)
    return [(name, wrong)]


def _in_lists(wrong: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return in which lists of values, given by where they end after where the first begins, some are wrong."""
    before = np.concatenate([[0], np.cumsum(wrong)])
    found: np.ndarray = before[ends[1:]] > before[ends[:-1]]
    return found


def _is_right(text: pa.Scalar) -> bool:
    try:
        text.as_buffer().to_pybytes().decode()
    except UnicodeDecodeError:
        return False
    return True
