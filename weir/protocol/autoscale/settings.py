"""What the user of an autoscaler has set; section ``autoscaler`` of config.json has the same names. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from weir.subtask_names import CHAINED


@dataclass(frozen=True, slots=True)
class StageBounds:
    """What is set for one stage."""

    least: int = 1
    most: int = 4096
    #: Share of its time in which a subtask is to be busy; None: as of all stages.
    target_utilisation: float | None = None
    #: False: the autoscaler leaves the stage as it is.
    is_scaled: bool = True


@dataclass(frozen=True, slots=True)
class AutoscaleSettings:
    """Times in seconds, shares 0 to 1."""

    #: Subtasks are to be busy for so much of their time; busier than ``utilisation_max``, a stage gets more of them.
    target_utilisation: float = 0.7
    utilisation_max: float = 0.9
    #: Bounds of stages without bounds of their own, and by a step of the stage.
    bounds: StageBounds = StageBounds()
    stages: Mapping[str, StageBounds] = field(default_factory=dict)
    #: Sources are scaled, too, for which the job is deployed anew.
    scales_sources: bool = False
    #: Figures are means of so long, and an overload must last as long again.
    window_s: float = 10.0
    #: After a rescale nothing is decided for so long, beside the window.
    cool_down_s: float = 10.0
    #: A backlog is to be worked off within this time.
    catch_up_s: float = 60.0
    #: A stage loses subtasks when the highest load of so long would have allowed it.
    scale_down_after_s: float = 180.0
    #: A load that has been rising is expected to go on for so long.
    look_ahead_s: float = 900.0
    #: A step multiplies the subtasks of a stage by at most this.
    growth_max: float = 4.0
    #: An input channel that is fuller than this share is an overload at once (``scale_up_portion``).
    scale_up_portion: float = 0.75
    #: Memory of a host that may be in use after a stage has lost subtasks.
    memory_share_max: float = 0.85

    def of_stage(self, name: str) -> StageBounds:
        """Bounds of a stage by its name, which is that of its steps joined by an arrow or the like."""
        for step, bounds in self.stages.items():
            if _is_in(step, name):
                return bounds
        return self.bounds

    def unknown_stages(self, names: Collection[str]) -> list[str]:
        """What ``stages`` has bounds of, and no stage of these names is: a slip, most likely."""
        return [step for step in self.stages if not any(_is_in(step, name) for name in names)]

    def target_of(self, name: str) -> float:
        """The utilisation that a stage is to have."""
        own = self.of_stage(name).target_utilisation
        return self.target_utilisation if own is None else own


def _is_in(step: str, name: str) -> bool:
    return step == name or step in name.split(CHAINED)
