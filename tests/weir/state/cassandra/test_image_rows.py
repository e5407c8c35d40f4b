import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.weir.state.cassandra.last_write_wins import LastWriteWins
from weir.config.stores import CassandraConfig
from weir.protocol.queries import QueryError, parse_question
from weir.state.cassandra.entries import deletion, value_header
from weir.state.cassandra.image_rows import ImageOverRows, check_question
from weir.state.cassandra.schema import state_tables
from weir.state.layout import encode_key
from weir.state.stores.memory import MemoryBackend

KEYS = [encode_key(0, 3, name) for name in (b"a", b"b", b"c", b"d")]


class Image:
    """What a checkpoint has of the changes."""

    def __init__(self) -> None:
        self.store = MemoryBackend()

    def start_get(self, keys: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        return lambda: self.store.get_many(keys)

    def scan(
        self, start: bytes, stop: bytes, *, prefixes: Sequence[bytes], reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self.store.scan(start, stop, reverse=reverse)

    def close(self) -> None: ...


def test_a_checkpoint_is_its_changes_over_the_rows_until_the_database_has_gone_on() -> None:
    tables, image = LastWriteWins(), Image()
    tables.begin("job", 5, None)
    tables.write([(KEYS[0], b"row"), (KEYS[1], b"row"), (KEYS[3], b"row")], 5, None)
    image.store.write([(KEYS[1], value_header(6) + b"change"), (KEYS[2], value_header(6) + b"new")])
    image.store.write([(KEYS[3], deletion(6))])
    at_6 = ImageOverRows(image, tables, 6)  # type: ignore[arg-type]
    state = [(KEYS[0], b"row"), (KEYS[1], b"change"), (KEYS[2], b"new")]
    assert at_6.start_get(KEYS)() == [b"row", b"change", b"new", None]
    assert list(at_6.scan(KEYS[0], KEYS[3] + b"\0", prefixes=[])) == state
    assert list(at_6.scan(KEYS[0], KEYS[3] + b"\0", prefixes=[], reverse=True)) == state[::-1]
    tables.begin("job", 7, None)
    with pytest.raises(
        QueryError, match="gone on to checkpoint 7, and checkpoint 6 cannot be read"
    ) as raised:
        at_6.start_get(KEYS)()
    assert raised.value.status == 503
    with pytest.raises(QueryError, match="try again"):
        list(at_6.scan(KEYS[0], KEYS[3], prefixes=[]))
    # What the checkpoint has itself stays good.
    assert at_6.start_get(KEYS[1:2])() == [b"change"]


@pytest.mark.parametrize(
    ("settings", "given", "refused"),
    [
        ({}, {"from": "a", "to": "b"}, ""),
        ({}, {"prefix": "a", "reverse": "true"}, ""),
        ({}, {"count": "true"}, "rows of weir.job_count_weir_store are not counted"),
        ({"counts": True}, {"count": "true", "prefix": "a"}, ""),
        ({"layout": "global"}, {"limit": "2", "reverse": "true"}, ""),
        ({"layout": "global"}, {"count": "true"}, "set count.counts=true"),
        ({"layout": "global", "counts": True}, {"count": "true"}, ""),
        ({"layout": "global"}, {"from": "a"}, "whose rows have no order"),
        ({"layout": "global"}, {"to": "b"}, "whose rows have no order"),
        (
            {"layout": "global", "counts": True},
            {"prefix": "a", "count": "true"},
            "give the state the layout part",
        ),
    ],
)
def test_a_question_that_the_table_cannot_answer_is_refused(
    settings: Mapping[str, Any], given: Mapping[str, str], refused: str
) -> None:
    made = CassandraConfig(states=tuple(f"count.{name}={value}" for name, value in settings.items()))
    table = state_tables("job", {"count": 3}, made)[3]
    question = parse_question("count", "n", None, given)
    if not refused:
        check_question(table, question)
        return
    with pytest.raises(QueryError, match=re.escape(refused)) as raised:
        check_question(table, question)
    assert raised.value.status == 400
