"""Runs the scripts of the workload."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_script():
    """Run workgen.py or plot.py as a user does."""

    def run(script: str, *arguments: object, env: dict[str, str] | None = None) -> Any:
        command = [sys.executable, str(ROOT / script), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=250, check=False)

    return run
