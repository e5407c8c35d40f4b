"""How far back the states of a job reach that once had a TTL, or a shorter one. Pure.

What had expired when a job was changed stays expired, also what was not deleted yet. So the job takes over from the
checkpoint, beside the state itself, before which time its entries had expired.

This is a persisted form, in the manifests of checkpoints: ``{"state", "time", "first_ms"}`` for each state, by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Json = Any


@dataclass(frozen=True)
class Horizon:
    """Tells of one state of a step what has expired, whatever its TTL is now."""

    state: str
    #: What the times of its entries are.
    time: Literal["event", "processing"]
    #: Entries of earlier times had expired in the job before.
    first_ms: int


#: By step.
Horizons = Mapping[str, tuple[Horizon, ...]]


def horizons_to_json(horizons: Horizons) -> Json:
    """Return the horizons of steps as JSON values."""
    return {step: [asdict(each) for each in listed] for step, listed in horizons.items()}


def horizons_from_json(value: Json | None) -> dict[str, tuple[Horizon, ...]]:
    """Read what :func:`horizons_to_json` returned; None: nothing."""
    return {step: tuple(Horizon(**each) for each in listed) for step, listed in (value or {}).items()}
