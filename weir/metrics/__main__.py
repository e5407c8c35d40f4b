"""``python -m weir.metrics --markdown``, ``--alerts`` or ``--dashboard``: prints what is made from the definitions."""

from __future__ import annotations

import argparse
import sys

from weir.metrics.alerts import rule_file
from weir.metrics.dashboard import dashboard
from weir.metrics.reference import markdown

_MADE = {
    "markdown": (markdown, "docs/metrics.md"),
    "alerts": (rule_file, "rules for Prometheus"),
    "dashboard": (dashboard, "a dashboard for Grafana"),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m weir.metrics", description=__doc__)
    wanted = parser.add_mutually_exclusive_group(required=True)
    for name, (make, what) in _MADE.items():
        wanted.add_argument(f"--{name}", dest="make", action="store_const", const=make, help=f"print {what}")
    sys.stdout.write(parser.parse_args().make())
