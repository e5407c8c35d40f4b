"""Commands to a subtask that fails before it comes to them."""

from types import SimpleNamespace

import pytest

from task_manager.exchange.channels import CancelledError
from task_manager.subtasks.mailbox import Mailbox


def test_who_waits_for_a_subtask_that_fails_is_told_why():
    mailbox = Mailbox(SimpleNamespace(wake=lambda: None))
    waiting = [mailbox.post(print), mailbox.post_routing(print)]
    mailbox.discard(OSError("the connection to a peer is lost"))
    for future in waiting:
        with pytest.raises(CancelledError, match="has ended: the connection to a peer is lost"):
            future.result()
    assert mailbox.post(print) is None
