"""Orders of a rescale that do not arrive."""

import asyncio
import types

from control_plane.link.task_managers import TaskManagers
from control_plane.rescale.rescale_calls import RescaleCalls
from weir.errors import ConnectionLostError
from weir.rpc.wire import JobIdentity
from weir.types import SubtaskId

NEW = SubtaskId(1, 3)


def test_new_subtasks_of_a_rescale_that_is_taken_back_are_told_to_stop_until_they_have_heard_it():
    """A rescale that is being taken back holds checkpoints up until they have ended."""
    asked, slept = [], []

    async def cancel(request):
        asked.append(request)
        if len(asked) < 3:
            raise ConnectionLostError("task manager h:1 does not answer")

    async def sleep(seconds):
        slept.append(seconds)

    task_managers = TaskManagers(1_000)
    task_managers.clients["h:1"] = types.SimpleNamespace(cancel=cancel)
    calls = RescaleCalls(
        types.SimpleNamespace(machine=types.SimpleNamespace(placement={NEW: "h:1"})),
        types.SimpleNamespace(sleep=sleep),
        task_managers,
        None,
        {1: JobIdentity("job-1", "f", 2)},
        lambda rescale, event: None,
        lambda rescale, cause: None,
    )
    rescale = types.SimpleNamespace(rescale_id=1, phase=types.SimpleNamespace(is_final=False))
    asyncio.run(calls.cancel(rescale, [NEW], []))
    assert (len(asked), len(slept)) == (3, 2)
    assert [item.subtask_index for item in asked[0].subtasks] == [3]
