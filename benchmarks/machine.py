"""What a figure depends on besides the code: the machine and the versions. No host names."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import psutil

_PACKAGES = ("duckdb", "grpcio", "numba", "numpy", "polars", "pyarrow", "rocksdict")


def machine_facts() -> dict[str, object]:
    """Cores, memory, processor, Python and package versions, and the load before the benchmark."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "load_average_1_min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
