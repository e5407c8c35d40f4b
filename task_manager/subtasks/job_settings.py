"""What the control plane decides for a whole job and tells every task manager of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.config import StateStrategy


@dataclass(frozen=True)
class JobSettings:
    """What the control plane decides for the whole job."""

    watermark_interval_ms: float
    out_of_order_grace_period_ms: float
    idle_timeout_ms: float
    alignment_timeout_ms: float
    #: Wall clock of the deployment, epoch µs, the same on all task managers.
    deployed_us: int
    #: Numbers of the states of keyed steps in the store.
    state_ids: Mapping[str, int]
    #: Steps that raised again and again: rows that make them raise are put aside.
    isolated_steps: tuple[str, ...] = ()
    #: Configuration of the run, for sidecars.
    run_facts: dict[str, object] = field(default_factory=dict)
    #: What becomes of state in rescales, as the control plane says.
    strategy: StateStrategy = field(default_factory=StateStrategy)
