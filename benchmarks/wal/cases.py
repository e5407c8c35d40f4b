"""The cases of ``benchmarks wal``: what is sent, how, and to which brokers."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from weir.errors import ConfigError

Mode = Literal["send", "send_many", "sync", "paced"]
Data = Literal["random", "words", "json", "pool"]
Acks = Literal["all", "1", "0"]

LINGER_MS = 5
#: Unless a case says otherwise.
COMPRESSION: dict[Data, str] = {"random": "none", "words": "lz4", "json": "lz4", "pool": "lz4"}
#: Batches under way at a time: of our log, and what Kafka's client is told where a case asks for it.
IN_FLIGHT = 5
PACE_PER_SECOND = 10_000
#: Records without an answer, where each is a batch of its own: the last ones shall not wait for minutes.
SINGLE_RECORDS_MAX = 2_000
#: What the parts of the benchmark are called that are no cases.
FAILOVER, READER, RECOVERY, WIRE = "failover", "reader", "recovery", "wire"
_SEED = 20220415
#: Records between two looks at the clock, and of one ``send_many``.
_PART: dict[Mode, int] = {"send": 500, "send_many": 5_000, "sync": 1, "paced": 10}
_WORD = b"\5entry"
_POOL = 50


@dataclass(frozen=True)
class Case:
    """What is sent, and how."""

    mode: Mode
    data: Data
    acks: Acks = "all"
    #: None: that of ``COMPRESSION``.
    codec: str | None = None
    #: One record per batch, and no waiting for others.
    single: bool = False
    #: None: five batches with our log, and whatever Kafka's client likes best.
    in_flight: int | None = None
    #: Kafka's client sends nothing twice; ours never does.
    idempotent: bool = False
    #: "": by size alone.
    retention: str = ""
    #: Brokers keep their data on the disk, not in memory.
    on_disk: bool = False

    @property
    def name(self) -> str:
        """What ``--only`` looks into."""
        more = [
            *([] if self.codec is None else [self.codec]),
            *(["batches of 1"] if self.single else []),
            *([f"in flight {self.in_flight}"] if self.in_flight else []),
            *(["idempotent"] if self.idempotent else []),
            *([f"retention {self.retention}"] if self.retention else []),
            *(["on disk"] if self.on_disk else []),
        ]
        return ", ".join([self.mode, self.data, f"acks={self.acks}", *more])

    @property
    def compression(self) -> str:
        """Of each batch."""
        return COMPRESSION[self.data] if self.codec is None else self.codec

    @property
    def linger_ms(self) -> int:
        """How long a record may wait: who sends one at a time has nothing that could join it."""
        return 0 if self.mode == "sync" or self.single else LINGER_MS


_BARRED: tuple[Data, ...] = ("random", "words")


def _all_cases() -> Iterator[Case]:
    acks: tuple[Acks, ...] = ("1", "0")
    # Those that the bars judge.
    for data in _BARRED:
        yield from (Case("send", data), Case("send_many", data))
    yield from (Case("send", data, each) for each in acks for data in _BARRED)
    yield Case("sync", "random")
    yield Case("paced", "random")
    # What the predecessor's charts show: sync by acks, batching with and without compression, and so on.
    yield from (Case("sync", "random", each) for each in acks)
    others: tuple[Data, ...] = ("json", "pool")
    for data in others:
        yield from (Case("send", data), Case("send_many", data))
    codecs: tuple[tuple[Data, str], ...] = (
        ("words", "none"), ("words", "zstd"), ("json", "none"), ("json", "zstd"),
    )  # fmt: skip
    for data, codec in codecs:
        yield Case("send", data, codec=codec)
    yield from (Case("send", "words", codec=codec, single=True) for codec in ("none", "lz4"))
    yield from (Case("send", "random", in_flight=count) for count in range(1, IN_FLIGHT + 1))
    yield Case("send", "random", idempotent=True)
    modes: tuple[Mode, ...] = ("sync", "send")
    for mode in modes:
        yield from (Case(mode, "random", "1", retention=each) for each in ("7d", "1m", "5s"))
    yield from (Case("sync", "random", each, on_disk=True) for each in ("all", *acks))
    yield Case("send", "random", on_disk=True)


CASES = tuple(_all_cases())
#: The parts that are no cases, and whether they are run unless ``--only`` names them.
TRIALS = {FAILOVER: True, READER: True, WIRE: True, RECOVERY: False}


def chosen(only: Sequence[str]) -> tuple[list[Case], list[str]]:
    """Return the cases and the other parts whose name has one of these texts; all of them if there is none.

    A text that is a whole name means that one alone.

    Raises:
        ConfigError: nothing has it.
    """
    names = [*(case.name for case in CASES), *TRIALS]
    for text in only:
        if not any(text in name for name in names):
            raise ConfigError(f"--only {text}: no case has it; there are {'; '.join(names)}")

    def is_chosen(name: str) -> bool:
        return any(text == name or (text not in names and text in name) for text in only)

    if not only:
        return list(CASES), [name for name, is_usual in TRIALS.items() if is_usual]
    return [case for case in CASES if is_chosen(case.name)], [name for name in TRIALS if is_chosen(name)]


def records(data: Data, count: int = 20_000) -> list[bytes]:
    """Make records of the predecessor's sizes, 114 to 1,194 bytes; of 1 KiB if they are JSON.

    Args:
        data: "random" bytes that never repeat; one repeated word; some records that are drawn again and again
            ("pool"); or JSON objects.
        count: how many.
    """
    chance = random.Random(_SEED)
    if data == "json":
        return [_json_record(chance, number) for number in range(count)]
    sizes = [len(_WORD) * chance.randint(19, 199) for _ in range(count)]
    if data == "words":
        return [_WORD * (size // len(_WORD)) for size in sizes]
    if data == "pool":
        some = [chance.randbytes(size) for size in sizes[:_POOL]]
        return chance.choices(some, k=count)
    content, ends = os.urandom(sum(sizes)), itertools.accumulate(sizes)
    return [content[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _json_record(chance: random.Random, number: int) -> bytes:
    """Return an object as a database's change stream has them: names that repeat, values that do not."""
    words = (
        "insert",
        "update",
        "delete",
        "accounts",
        "orders",
        "customers",
        "pending",
        "paid",
        "shipped",
        "Europe",
    )
    head = (
        f'{{"lsn":{number},"table":"{chance.choice(words)}","operation":"{chance.choice(words)}",'
        f'"committed_at":{1_700_000_000_000 + number},"before":{{"id":{chance.randrange(10**9)},'
        f'"amount":{chance.random() * 1000:.2f},"status":"{chance.choice(words)}"}},"after":{{"note":"'
    )
    size = 1024 - len(head) - len('"}}')
    text = " ".join(f"{chance.choice(words)} {chance.randrange(10**6)}" for _ in range(size // 8))
    return f'{head}{text[:size]:<{size}}"}}}}'.encode()


def record_parts(case: Case) -> list[list[bytes]]:
    """Make the records, in parts of as many as are sent between two looks at the clock."""
    data, size = records(case.data), 20 if case.single else _PART[case.mode]
    return [data[first : first + size] for first in range(0, len(data), size)]
