"""Writes ``docs/configuration.md`` from the models, so that the page cannot be wrong."""

from __future__ import annotations

import json
from typing import Any

from weir.config.keys import Key, all_keys, section_models
from weir.config.section import GIB, KIB, MIB

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m pages configuration`; do not edit. -->

Both processes read `config.json` of the working directory, or the file given with `--config PATH`. The file
in the repository holds every key with its default; a key that is left out has that default too.

Each key can be overridden, the later of these wins:

1. the file: `{"taskManager": {"batch_size": 1000}}`
2. the environment: `WEIR_TASKMANAGER_BATCH_SIZE=1000`, that is `WEIR_<SECTION>_<KEY>` in capitals. Elements
   of a list are separated by commas.
3. the command line: `--set taskManager.batch_size=1000`

An unknown key or variable, a wrong type or a value out of range ends the process with exit code 2, and
one line for each problem that says where it is and what is allowed. A value that this version does not
support yet is refused, not ignored. Deprecated keys are accepted with a warning.
"""


def markdown() -> str:
    """The page, with one table per section in the order of the file."""
    parts = [_INTRODUCTION]
    for name in section_models():
        keys = [key for key in all_keys().values() if key.dotted.rpartition(".")[0] == name]
        if name:
            parts.append(f"## {name}\n\n{_table(keys)}")
        else:
            parts.append(f"## Top level\n\n{_table(keys)}")
    return "\n".join(parts)


def _table(keys: list[Key]) -> str:
    rows = ["| Key | Default | Unit | Allowed | Meaning |", "| --- | --- | --- | --- | --- |"]
    for key in keys:
        meaning = f"Deprecated. {key.field.description}" if key.deprecated else key.field.description
        name = key.dotted.rpartition(".")[2]
        rows.append(f"| `{name}` | {_default(key)} | {key.unit} | {key.allowed} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(key: Key) -> str:
    value: Any = list(key.default) if isinstance(key.default, tuple) else key.default
    shown = f"`{json.dumps(value)}`"
    if key.unit == "bytes":
        for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if value >= size and value % size == 0:
                return f"{shown} ({value // size} {name})"
    return shown
