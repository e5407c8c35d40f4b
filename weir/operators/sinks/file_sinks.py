"""Which sink writes the files that a spec asks for."""

from __future__ import annotations

from weir.operators.sinks.part_files import PartFilesSink
from weir.operators.sinks.rolled_files import RolledFilesSink
from weir.specs import FileSinkSpec


def create_file_sink(spec: FileSinkSpec) -> PartFilesSink:
    """The runtime of a file sink; for ``weir.operators.registry``.

    Raises:
        InputError: its URI is not understood.
    """
    return RolledFilesSink(spec) if spec.rolls else PartFilesSink(spec)
