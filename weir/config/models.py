"""The whole of ``config.json`` as frozen models; its sections are in the modules beside this one."""

from __future__ import annotations

from weir.config.autoscaler import AutoscalerConfig
from weir.config.control_plane import ControlPlaneConfig
from weir.config.section import ListenPort, Port, Section, setting
from weir.config.security import SecurityConfig
from weir.config.task_manager import TaskManagerConfig
from weir.config.traces import TracesConfig


class PrometheusConfig(Section):
    """Section ``prometheus``."""

    enabled: bool = setting(False, "Serve metrics of each task manager at `prometheus_host:prometheus_port`.")
    prometheus_host: str = setting("127.0.0.1", "Address that the metrics page listens on.", min_length=1)
    prometheus_port: ListenPort = setting(
        9089,
        "Port of the metrics page; a second process on the same host needs another one; 0: any free one.",
    )
    push_enabled: bool = setting(False, "Also push metrics to a Pushgateway.")
    pushgateway_host: str = setting("127.0.0.1", "Host of the Pushgateway.", min_length=1)
    pushgateway_port: Port = setting(9091, "Port of the Pushgateway.")
    push_interval_ms: int = setting(1000, "How often metrics are pushed.", "ms", ge=100, le=3_600_000)
    job_name: str = setting("weir", "Label `job` of pushed metrics.", min_length=1)


class Config(Section):
    """The whole file."""

    control_plane: ControlPlaneConfig = setting(ControlPlaneConfig(), "The process that decides.")
    task_manager: TaskManagerConfig = setting(TaskManagerConfig(), "The processes that execute.")
    autoscaler: AutoscalerConfig = setting(AutoscalerConfig(), "How stages are scaled by themselves.")
    prometheus: PrometheusConfig = setting(PrometheusConfig(), "Metrics.")
    traces: TracesConfig = setting(TracesConfig(), "Traces of checkpoints and rescales.")
    security: SecurityConfig = setting(SecurityConfig(), "Who may call the processes.")
    file_name: str = setting(
        "data/events", "Input of the demo job: a file, a directory of parts or a glob.", min_length=1
    )
