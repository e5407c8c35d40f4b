"""The commands of ``python -m benchmarks``, by what they measure; each module adds its own to the application."""

from benchmarks.commands import peers, speed, state, strain
from benchmarks.commands.application import app

__all__ = ["app", "peers", "speed", "state", "strain"]
