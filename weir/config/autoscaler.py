"""Section ``autoscaler`` of ``config.json``: every key, default, unit, range and meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from weir.config.section import Section, TextList, setting
from weir.types import MAX_PARALLELISM_MAX

#: ``score=2..8``, ``score=2..8@0.6`` or ``score=off``; the name of a step may have nearly all characters.
_STAGE = re.compile(
    r"(?P<step>.+)=(?:(?P<off>off)|(?P<least>\d{1,4})\.\.(?P<most>\d{1,4})(?:@(?P<target>0\.\d{1,4}))?)"
)


@dataclass(frozen=True, slots=True)
class StageSetting:
    """What ``autoscaler.stages`` says of one stage."""

    step: str
    least: int = 1
    most: int = MAX_PARALLELISM_MAX
    target_utilisation: float | None = None
    is_scaled: bool = True


class AutoscalerConfig(Section):
    """Section ``autoscaler``."""

    enabled: bool = setting(
        False, "The control plane scales stages of the running job by itself (docs/autoscaling.md)."
    )
    dry_run: bool = setting(
        False, "Say what would be scaled, and why, on the page, in `/status` and in the log; scale nothing."
    )
    target_utilisation: float = setting(
        0.7,
        "Share of its time in which a subtask is to be busy; less than `utilisation_max`.",
        "fraction",
        ge=0.1,
        le=0.95,
    )
    utilisation_max: float = setting(
        0.9, "A stage that would be busier than this gets more subtasks.", "fraction", ge=0.15, le=1
    )
    subtasks_min: int = setting(
        1, "A stage keeps so many subtasks.", "subtasks", ge=1, le=MAX_PARALLELISM_MAX
    )
    subtasks_max: int = setting(
        64, "A stage gets so many subtasks at most.", "subtasks", ge=1, le=MAX_PARALLELISM_MAX
    )
    stages: TextList = setting(
        (),
        "Other bounds for single stages, by a step of theirs: `score=2..8`, with another target utilisation "
        "`score=2..8@0.6`, or `score=off`: never scaled.",
    )
    sources: bool = setting(
        False,
        "Scale sources, too; each time the job is deployed anew from a checkpoint, for a second or three.",
    )
    window_s: float = setting(
        10.0,
        "Rates are means of so long; an overload must last as long again, and then stages grow.",
        "s",
        ge=2,
        le=3600,
    )
    cool_down_s: float = setting(
        10.0, "After a rescale nothing is decided for so long, beside `window_s`.", "s", ge=0, le=86_400
    )
    catch_up_s: float = setting(
        60.0,
        "A stage grows for what comes and for what waits: a backlog is to be worked off within so long.",
        "s",
        ge=1,
        le=86_400,
    )
    scale_down_after_s: float = setting(
        180.0,
        "A stage loses subtasks when the highest load of so long would have allowed it; later if its load comes back "
        "again and again.",
        "s",
        ge=1,
        le=86_400,
    )
    look_ahead_s: float = setting(
        900.0,
        "A stage whose load has been rising for a fifth of this time grows for the load that it will have after so "
        "long, up to twice the present one; 0 would be never, so the least is 15.",
        "s",
        ge=15,
        le=86_400,
    )
    growth_max: float = setting(
        4.0, "A step multiplies the subtasks of a stage by at most this.", "times", ge=1.1, le=100
    )
    memory_share_max: float = setting(
        0.85,
        "A stage keeps subtasks that it could lose if a host of the others would then use more of its memory.",
        "fraction",
        gt=0,
        le=1,
    )
    hook_command: TextList = setting(
        (),
        "Program and arguments that the control plane runs, without a shell, when slots are missing; it gets "
        "`WEIR_SLOTS_MISSING`, `WEIR_JOB_ID` and `WEIR_REASON`. It may start task managers.",
    )
    hook_url: str = setting(
        "",
        "The control plane sends a POST with the same facts as JSON there when slots are missing; empty: it does not.",
        pattern=r"^(https?://.+)?$",
    )
    hook_pause_s: float = setting(
        60.0, "So long at least between two calls of the hook.", "s", ge=1, le=86_400
    )

    @property
    def stage_settings(self) -> list[StageSetting]:
        """What ``stages`` says."""
        return [found for text in self.stages if (found := _stage_setting(text)) is not None]

    @model_validator(mode="after")
    def _can_be_followed(self) -> Self:
        if self.target_utilisation >= self.utilisation_max:
            raise PydanticCustomError("target_utilisation", "must be less than utilisation_max")
        if self.subtasks_min > self.subtasks_max:
            raise PydanticCustomError("subtasks_min", "must be at most subtasks_max")
        for text in self.stages:
            found = _stage_setting(text)
            if found is None or not 1 <= found.least <= found.most <= MAX_PARALLELISM_MAX:
                raise PydanticCustomError(
                    "stages",
                    "each must be like score=2..8, score=2..8@0.6 or score=off, but one is {text}",
                    {"text": text},
                )
        return self


def _stage_setting(text: str) -> StageSetting | None:
    match = _STAGE.fullmatch(text)
    if match is None:
        return None
    step = match["step"].strip()
    if match["off"]:
        return StageSetting(step, is_scaled=False)
    target = None if match["target"] is None else float(match["target"])
    if target is not None and not 0.1 <= target <= 0.95:
        return None
    return StageSetting(step, int(match["least"]), int(match["most"]), target)
