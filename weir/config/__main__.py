"""``python -m weir.config``: the settings in force as JSON, without credentials."""

from __future__ import annotations

import argparse
import json
import os
import sys

from weir.config.loading import load_config, parse_set_flags
from weir.errors import ConfigError
from weir.redaction import redacted


def main() -> int:
    """Print the settings; problems go to standard error."""
    parser = argparse.ArgumentParser(prog="python -m weir.config", description=__doc__)
    parser.add_argument("--config", metavar="PATH", help="file to read instead of config.json")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")
    arguments = parser.parse_args()
    try:
        loaded = load_config(arguments.config, os.environ, parse_set_flags(arguments.set))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for warning in loaded.warnings:
        print(warning, file=sys.stderr)
    shown = redacted(loaded.config.model_dump(mode="json", by_alias=True))
    print(json.dumps(shown, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
