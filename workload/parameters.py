"""What a workload is made of: the parameters, checked once, and written beside the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from weir.errors import ConfigError
from workload.columns import ZIPF_EXPONENT_MAX

EVENTS_MAX = 10**12
KEYS_MAX = 10**12
PAYLOAD_BYTES_MAX = 64 * 1024
PARTITIONS_MAX = 10_000
#: First event time: 2023-11-14 22:13:20 UTC. A constant, so that the same parameters give the same bytes.
START_MS_DEFAULT = 1_700_000_000_000
_EVENTS_PER_PART = 1_000_000
_PARTS_DEFAULT_MIN, _PARTS_DEFAULT_MAX = 4, 256
#: A Spark long; xxhash64 takes the seed as one.
_SEED_LIMIT = 2**63


class FileFormat(StrEnum):
    """How the rows are written."""

    JSONL = "jsonl"
    PARQUET = "parquet"


class Distribution(StrEnum):
    """How often each key occurs."""

    UNIFORM = "uniform"
    ZIPF = "zipf"


class Schema(StrEnum):
    """What an event looks like."""

    SERVER = "server"
    WIKIPEDIA = "wikipedia"


@dataclass(frozen=True, slots=True)
class WorkloadParameters:
    """Everything that the content of a workload depends on, and nothing else but ``partitions``.

    Raises:
        ConfigError: A value is out of its range; the message names the flag.
    """

    events: int
    keys: int = 100_000
    schema: Schema = Schema.SERVER
    file_format: FileFormat = FileFormat.JSONL
    distribution: Distribution = Distribution.UNIFORM
    #: Zipf exponent; without meaning for the uniform distribution.
    exponent: float = 1.1
    payload_bytes: int = 0
    #: Whether the ``server`` schema has ``event_time``; disorder and a rate ask for it too.
    event_time: bool = False
    #: An event's time is set back by a uniform 0..disorder_ms.
    disorder_ms: int = 0
    #: Events per second of event time.
    event_rate: float = 10_000.0
    start_ms: int = START_MS_DEFAULT
    seed: int = 42
    #: Number of part files; the rows and their order are the same for any number. None: by the events.
    partitions: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check("--events", self.events, 1, EVENTS_MAX)
        _check("--keys", self.keys, 1, KEYS_MAX)
        _check("--payload-bytes", self.payload_bytes, 0, PAYLOAD_BYTES_MAX)
        _check("--disorder-ms", self.disorder_ms, 0, self.start_ms)
        _check("--start-ms", self.start_ms, 0, 10**14)
        _check("--seed", self.seed, -_SEED_LIMIT, _SEED_LIMIT - 1)
        if self.partitions is not None:
            _check("--partitions", self.partitions, 1, PARTITIONS_MAX)
        if not 0.0 < self.exponent <= ZIPF_EXPONENT_MAX:
            raise ConfigError(
                f"--exponent is {self.exponent}; it must be above 0 and at most {ZIPF_EXPONENT_MAX:g}"
                " (for exponent 0 use --distribution uniform)"
            )
        if not 0.001 <= self.event_rate <= 1e9:
            raise ConfigError(
                f"--event-rate is {self.event_rate}; it must be between 0.001 and 1e9 per second"
            )

    @property
    def part_count(self) -> int:
        """Number of part files: as asked, otherwise one per million events; never more than events."""
        by_size = -(-self.events // _EVENTS_PER_PART)
        wanted = self.partitions or min(max(by_size, _PARTS_DEFAULT_MIN), _PARTS_DEFAULT_MAX)
        return min(wanted, self.events)

    @property
    def has_event_time(self) -> bool:
        """Whether rows carry ``event_time``."""
        return self.event_time or self.disorder_ms > 0

    def as_json(self) -> Mapping[str, Any]:
        """Return the parameters as the marker file holds them."""
        return {**asdict(self), "partitions": self.part_count}


def _check(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{flag} is {value:,}; it must be between {low:,} and {high:,}")
