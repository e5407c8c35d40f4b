"""The cache goes ahead in parts that rows do not notice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import grpc
import pytest

from task_manager.rescale.cache_copy import CacheCopier, CopySender, next_part
from task_manager.rescale.group_state import SubtaskGroupState
from weir.protocol.routing import GroupMove
from weir.rpc.wire import JobIdentity
from weir.state import layout
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.values import ValueTable
from weir.testing import ManualClock
from weir.types import SubtaskId

STATE = 3
OWNER, NEW = SubtaskId(1, 0), SubtaskId(1, 1)
KEYS = [layout.encode_key(group, STATE, b"k%d" % number) for group in range(4) for number in range(100)]


class AtOnce:
    """A mailbox of a subtask that is idle."""

    def post(self, command: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        command()
        future.set_result(None)
        return future


@pytest.mark.parametrize("is_taken", [True, False])
def test_what_changes_while_the_cache_is_copied_is_written_too(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of it is written at once when the rescale is prepared, and rows wait."""
    store = MemoryBackend()
    backend = PlacedStore(store, "here:1", [STATE], lambda address: pytest.fail("nothing is elsewhere"))
    state = SubtaskGroupState(backend, [STATE], dict.fromkeys(range(4), 1), on_adopt=lambda _: None)
    table = ValueTable(backend, STATE, 1 << 20)
    state.bind([table])
    table.write_stored([(key, b"early") for key in KEYS], [])

    def send(sender: CopySender, groups: dict[int, int], cached: object) -> bool:
        """Rows go on while a part is sent."""
        table.write_stored([(key, b"late") for key in KEYS], [])
        return is_taken

    monkeypatch.setattr(CopySender, "send", send)
    running = SimpleNamespace(subtask=SimpleNamespace(mailbox=AtOnce()), group_state=state)
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        copier = CacheCopier(
            JobIdentity("job", "f", 1),
            "here:1",
            {OWNER: running},
            SimpleNamespace(stub=lambda address, make: make(channel)),
            {NEW: "there:1"},
            ManualClock(),
            copies=True,
            hurries=False,
            sleep=lambda _: None,
        )
        copier.copy([OWNER], 2, [GroupMove(group, 0, 1) for group in range(1, 4)])
    written = dict(store.scan())
    assert {written[key] for key in KEYS if key[1] > 0} == {b"late"}
    assert not any(key in written for key in KEYS if key[1] == 0)


def test_parts_grow_while_they_are_short_and_shrink_when_they_are_long() -> None:
    assert next_part(2, 0.0) == 4
    assert next_part(8, 0.0001) == 16
    assert next_part(8, 0.002) == 8
    assert next_part(8, 0.0025) == 6
    assert next_part(8, 0.1) == 4
    assert next_part(1, 0.1) == 1
