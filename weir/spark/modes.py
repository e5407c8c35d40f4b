"""How a job reads on Spark."""

from __future__ import annotations

from typing import Literal, TypeAlias

#: Of a job over inputs that end, or over streams.
Mode: TypeAlias = Literal["batch", "streaming"]
