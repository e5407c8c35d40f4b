"""Pages that repeat what the code says are equal to it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_configuration_reference_is_what_the_command_prints():
    command = [sys.executable, "-m", "weir.config", "--markdown"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs/configuration.md").read_text() == printed, "run: make docs"


def test_the_list_of_metrics_is_what_the_command_prints():
    command = [sys.executable, "-m", "weir.metrics", "--markdown"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs/metrics.md").read_text() == printed, "run: make docs"
