"""Broadcast state, a dict that each subtask has whole: that of the owner of key group 0 is told, as in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
from typing_extensions import override

from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import Entries
from weir.operators.queries.reading import RangeReading
from weir.operators.queries.state_format import EntryFormat

#: What keys of the dict are, whatever the key columns of the step.
DICT_KEY = pa.field("key", pa.string(), nullable=False)


class DictFormat(EntryFormat):
    """The format of a dict, whose keys lie in key group 0; see ``weir.state.tables.broadcast.dict_entries``."""

    only_group = 0

    def __init__(self) -> None:
        super().__init__(orjson.loads)

    @override
    def runs(self, reading: RangeReading, keys: KeyRange) -> Iterator[Entries]:
        if keys.group == self.only_group:
            yield from super().runs(reading, keys)

    @override
    def plain_values(self, values: Any) -> list[Any]:
        return [orjson.loads(data) for data in values]
