"""What those who bring questions need to know of the job; each kind of process knows it in another way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.protocol.queries import Question


@dataclass(frozen=True)
class Reply:
    """What a task manager answers."""

    #: As of HTTP; 421: another one owns the key's group.
    status: int
    answer_json: bytes
    #: Of the key that was asked for.
    key_group: int = 0
    #: Rows of a range, if they were wanted so.
    arrow: bytes = b""


class Directory(Protocol):
    """What a process knows of the job; used in one event loop.

    Methods raise QueryError with 503 if they cannot tell now what they are asked.
    """

    @property
    def generation(self) -> int:
        """Return the generation of the deployment; 0: none is known."""

    @property
    def away_s(self) -> float:
        """Return for how long the control plane has not answered; 0: it does. It may have deployed anew since."""

    async def refresh(self, *, is_wrong: bool) -> None:
        """Learn anew what may have changed; ``is_wrong``: what is known has led to the wrong place."""

    def check(self) -> None:
        """Refuse questions while the job does not run."""

    def stage_of(self, step: str) -> int:
        """The stage of a step with state.

        Raises:
            QueryError: there is none of that name.
        """

    def known(self) -> Mapping[str, Sequence[str]]:
        """Return for each step the states that can be asked for; see ``weir.questions.askable``."""

    def routing_version(self, stage_index: int) -> int:
        """Return the version of the stage's routing table."""

    def likely_group(self, question: Question, stage_index: int) -> int | None:
        """Where the key most likely is; see ``weir.questions.likely_groups``."""

    def address(self, stage_index: int, group: int) -> str:
        """The task manager of the subtask that owns a key group."""

    def owners(self, stage_index: int) -> tuple[Sequence[str], int]:
        """The task managers that own key groups of a stage, each once, and how many key groups there are."""

    def latest_checkpoint(self) -> tuple[int, str]:
        """Number of the last checkpoint, and the path of its manifest."""

    async def call(self, address: str, question: Question, manifest_path: str) -> Reply:
        """Ask a task manager.

        Raises:
            WeirError: it does not answer.
        """

    @property
    def is_fresh(self) -> bool:
        """Return whether :meth:`refresh` would not wait for anything, and the control plane answers."""

    def begin_call(
        self, address: str, question: Question, done: Callable[[Reply | None], None]
    ) -> Callable[[], None] | None:
        """Begin a :meth:`call`, without waiting: ``done`` gets the reply, or None if there is none.

        Returns:
            What takes the question back, whereupon ``done`` is not called; None: it takes :meth:`call`.
        """
