"""Answers of ``/profile`` and ``/logs``."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ProfileBoxView(BaseModel):
    """A box of a flame graph; a box lies on the one with a smaller ``depth`` in whose width it is."""

    depth: int
    start: int = Field(description="in samples")
    width: int = Field(description="in samples")
    name: str
    place: str = Field(description="line and file of most of it; empty: it is no function")
    kind: str = Field(description="STEP, JOB (the job's own code), ENGINE, LIBRARY or WAITS")


class ProfileView(BaseModel):
    """What a stage does with its time: where its threads were, each time they were looked at."""

    profile: int
    stage: int
    name: str
    state: str = Field(description="RUNNING, DONE or FAILED")
    cause: str
    seconds: float
    started_ms: int
    subtasks: int
    samples: int = Field(description="looks at a thread")
    words: list[str] = Field(description="where the time goes, the largest part first")
    boxes: list[ProfileBoxView]


class LogView(BaseModel):
    """The end of the log of a process, without credentials and control characters."""

    process: str = Field(description="address of a task manager, or: control plane")
    entries: list[str] = Field(description="oldest first")
