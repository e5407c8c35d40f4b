"""Settings of both processes: ``config.json``, overridden by ``WEIR_...`` variables, overridden by flags.

Read once, in ``__main__``; everything else gets the frozen section it needs as a constructor argument.
``python -m pages configuration`` prints the reference that ``docs/configuration.md`` holds.
"""

from weir.config.autoscaler import AutoscalerConfig, StageSetting
from weir.config.control_plane import ControlPlaneConfig
from weir.config.loading import DEFAULT_PATH, LoadedConfig, load_config, parse_set_flags
from weir.config.models import Config, PrometheusConfig
from weir.config.security import SecurityConfig
from weir.config.state_strategy import StateMove, StateStrategy
from weir.config.stores import RocksDbConfig
from weir.config.task_manager import TaskManagerConfig
from weir.config.traces import TracesConfig

__all__ = [
    "DEFAULT_PATH",
    "AutoscalerConfig",
    "Config",
    "ControlPlaneConfig",
    "LoadedConfig",
    "PrometheusConfig",
    "RocksDbConfig",
    "SecurityConfig",
    "StageSetting",
    "StateMove",
    "StateStrategy",
    "TaskManagerConfig",
    "TracesConfig",
    "load_config",
    "parse_set_flags",
]
