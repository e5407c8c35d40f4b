"""Types of declared state: what values are allowed, what they are as bytes, and which stored types another one reads.

Called by ``weir.author.states`` when a job is built, and by the handles of ``weir.state.handles``. A type is a Polars
data type, ``int``, ``float``, ``str``, ``bytes``, ``bool``, or a dataclass of these. Bytes are a promise (golden values
in ``tests/weir/states/test_state_types.py``): a version byte, then JSON in which every value is exact.

======================  ==========================================================================
integers, booleans      as they are
floats                  shortest digits that read back the same; "nan", "inf", "-inf" as text
text, Decimal           text
bytes                   base64 text; a value that is nothing else: the version byte 02, then the bytes
date, time, datetime    an integer: days; nanoseconds; units since the epoch (UTC if there is a time zone)
duration                an integer of units
List                    array; null for a missing element
Struct, dataclass       array of the fields, in order
======================  ==========================================================================
"""

from weir.state.types.declared import value_type
from weir.state.types.forms import INTEGERS, Form, describe, integer_reads, key_reads, reads
from weir.state.types.map_keys import MapKeyType
from weir.state.types.value_types import STAMP_BYTES, STAMPED, ValueType, listed

__all__ = [
    "INTEGERS",
    "STAMPED",
    "STAMP_BYTES",
    "Form",
    "MapKeyType",
    "ValueType",
    "describe",
    "integer_reads",
    "key_reads",
    "listed",
    "reads",
    "value_type",
]
