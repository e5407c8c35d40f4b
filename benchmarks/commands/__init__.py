"""The commands of ``python -m benchmarks``, by what they measure; each module adds its own to the application."""

from benchmarks.commands import speed, state, strain
from benchmarks.commands.application import app

__all__ = ["app", "speed", "state", "strain"]
