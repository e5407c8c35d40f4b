"""What decodes the values of records: of JSON, or coded, for the columns that somebody reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from weir.operators.sources.json.json_decode import JsonDecoder
from weir.specs.kafka import KafkaSpec
from weir.specs.log import LogSpec
from weir.specs.sources import LINE_BYTES_MAX

if TYPE_CHECKING:
    from weir.operators.kafka.coded_values import CodedValues

PartT = TypeVar("PartT", bound=str)


class ValueDecoders(Generic[PartT]):
    """The columns of records for one source. Not thread-safe: the decoder of values keeps scratch arrays.

    Args:
        spec: of the source; columns that nobody reads are not decoded.
        parts: its parts.
        records_max: that one call gets at most.
        who: the step, for messages.
        takes_nulls: a record without a value is a row.

    Raises:
        InputError: the schema of values in Avro or Protobuf cannot be used.
    """

    def __init__(
        self,
        spec: KafkaSpec | LogSpec,
        parts: Sequence[tuple[str, PartT]],
        records_max: int,
        who: str,
        *,
        takes_nulls: bool = False,
    ) -> None:
        self._schema = spec.schema_read
        known = dict(parts)
        self._parts = [(field, known[field.name]) for field in self._schema if field.name in known]
        self._fields = [field for field in self._schema if field.name not in known]
        self._coded: CodedValues | None = None
        if spec.coding is not None and self._fields:
            # Loaded only where it is needed.
            from weir.operators.kafka.coding import decoder_of_values

            paths = dict(spec.paths)
            columns = [
                (field, tuple(map(str, paths.get(field.name, (field.name,))))) for field in self._fields
            ]
            self._coded = decoder_of_values(spec.coding, columns, who, takes_nulls=takes_nulls)
        self._json: JsonDecoder | None = None
        if spec.value == "json" and self._fields:
            names = {field.name for field in self._fields}
            self._json = JsonDecoder(
                pa.schema(self._fields),
                [name for name in names if name == spec.event_time_column],
                LINE_BYTES_MAX,
                lines_max=records_max,
                paths={name: path for name, path in spec.paths if name in names},
            )
