"""``python -m pages NAME`` prints a page or file of ``docs``, made from the code; ``make docs`` writes them all."""

from __future__ import annotations

import argparse
import sys

from pages import alerts, configuration, dashboard, metrics

_MADE = {
    "configuration": configuration.markdown,
    "metrics": metrics.markdown,
    "alerts": alerts.rule_file,
    "dashboard": dashboard.dashboard,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pages", description=__doc__)
    parser.add_argument("name", choices=_MADE)
    sys.stdout.write(_MADE[parser.parse_args().name]())
