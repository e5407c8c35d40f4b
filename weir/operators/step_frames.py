"""Which step runs, told by a frame of the thread that runs its chain: for profiles, at no cost while nobody asks."""

from __future__ import annotations

from types import FrameType

from weir.operators import chain
from weir.operators.chain import OperatorChain

#: Methods of a chain that call the operator with number ``index``.
_CALLING = frozenset({"_send_on", "_pass_on"})


def step_in_frame(frame: FrameType) -> str | None:
    """The step that this frame calls; None: it is no frame of a chain that calls one. Any thread may ask."""
    code = frame.f_code
    if code.co_name not in _CALLING or code.co_filename != chain.__file__:
        return None
    found = frame.f_locals
    runs, index = found.get("self"), found.get("index")
    if not isinstance(runs, OperatorChain) or not isinstance(index, int):
        return None
    return runs.steps[index][1].operator_name
