"""Arrays as a file of Arrow IPC has them: Arrow takes their offsets and indices as they are, whatever was damaged.

Who follows an offset beyond its values reads other memory, or ends the process.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

#: What texts are to be looked at as: whether they are UTF-8 is a question of rows (``weir.rows.utf8``).
_BYTES_OF = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def check_whole(batch: pa.RecordBatch) -> None:
    """Check that all values of a record batch lie within its memory.

    Raises:
        pa.ArrowException: some do not.
    """
    for column in batch.columns:
        _check(column)


def _check(array: pa.Array) -> None:
    # Lengths first, so that the buffers are large enough for what is looked at next.
    array.validate()
    dtype = array.type
    if isinstance(dtype, pa.BaseExtensionType):
        _check(array.storage)
    elif pat.is_dictionary(dtype):
        array.indices.validate(full=True)
        # Checks that the indices are places of it.
        pa.DictionaryArray.from_arrays(array.indices, pa.nulls(len(array.dictionary)))
        _check(array.dictionary)
    elif pat.is_struct(dtype):
        for index in range(dtype.num_fields):
            _check(array.field(index))
    elif pat.is_fixed_size_list(dtype):
        _check(array.values)
    elif pat.is_list(dtype) or pat.is_large_list(dtype) or pat.is_map(dtype):
        _check_ends(array)
        for values in (array.keys, array.items) if pat.is_map(dtype) else (array.values,):
            _check(values)
    elif dtype in _BYTES_OF:
        array.view(_BYTES_OF[dtype]).validate(full=True)
    else:
        array.validate(full=True)


def _check_ends(lists: pa.Array) -> None:
    """Check where lists end, without a look at their values."""
    make = pa.large_list if pat.is_large_list(lists.type) else pa.list_
    elements = len(lists.keys if pat.is_map(lists.type) else lists.values)
    buffers = lists.buffers()[:2]
    pa.Array.from_buffers(
        make(pa.null()), len(lists), buffers, offset=lists.offset, children=[pa.nulls(elements)]
    ).validate(full=True)
