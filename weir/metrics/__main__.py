"""``python -m weir.metrics --markdown``: prints ``docs/metrics.md``."""

from __future__ import annotations

import argparse
import sys

from weir.metrics.reference import markdown

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m weir.metrics", description=__doc__)
    parser.add_argument("--markdown", action="store_true", required=True, help="print docs/metrics.md")
    parser.parse_args()
    sys.stdout.write(markdown())
