"""What the log tells of checkpoints: savepoints, failures of others less and less, and sinks that did not deliver."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from weir.errors import FailureKind
from weir.protocol.checkpoints import checkpoint_model as model
from weir.redaction import redacted_text
from weir.subtask_names import NameOf

log = logging.getLogger("control_plane")

#: What is told of a sink that could not deliver; anything else is a mistake in its code.
_DELIVERY_KINDS = {FailureKind.OUTAGE: "outage", FailureKind.PERMANENT: "refused"}


class CheckpointLog:
    """The log of a job's checkpoints; the checkpointer calls it."""

    def __init__(self, name_of: NameOf) -> None:
        """``name_of``: what subtasks are called."""
        self._name_of = name_of
        #: Checkpoints, without savepoints, that failed since the last one that did not.
        self._failed_in_a_row = 0

    def ended(self, record: model.CheckpointRecord) -> None:
        """A savepoint that comes to nothing was asked for by somebody; failed checkpoints are told of less and less."""
        number, path, cause = record.checkpoint_id, redacted_text(record.path), redacted_text(record.cause)
        is_complete = record.state is model.CheckpointState.COMPLETE
        if path and is_complete:
            log.info("savepoint %s is complete (checkpoint %d)", path, number)
        elif path:
            log.warning("savepoint %s was not made (checkpoint %d): %s", path, number, cause)
        if is_complete:
            self._failed_in_a_row = 0
        elif record.state is model.CheckpointState.FAILED and not path:
            self._failed_in_a_row += 1
            if str(self._failed_in_a_row).strip("0") == "1":
                row = f" ({self._failed_in_a_row} in a row)" if self._failed_in_a_row > 1 else ""
                log.warning("checkpoint %d failed%s: %s", number, row, cause)

    def undelivered(self, failures: Iterable[model.DeliveryFailure], again_ms: int | None) -> None:
        """Sinks did not deliver; they try again after so many ms (None: that is not up to them)."""
        again = "" if again_ms is None else f"; again in {again_ms} ms"
        for failure in failures:
            log.warning(
                "%s: %s could not deliver what it had received: %s%s",
                _DELIVERY_KINDS.get(failure.kind, "mistake"),
                self._name_of(failure.subtask),
                failure.cause,
                again,
            )
