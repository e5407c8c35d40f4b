"""Weir: a stream processor in Python whose keyed state is disaggregated from compute.

The names here are all that a job needs::

    import polars as pl
    import weir

    def build(input: str, parallelism: int = 1) -> weir.Dataflow:
        flow = weir.Dataflow("server_count")
        events = flow.source("events", weir.JsonLines(input, schema={"id": int, "server_name": str}))
        kept = events.filter("keep", pl.col("id") % 4 != 0)
        kept.key_by("server_name").count("count", parallelism=parallelism).sink("out", weir.Print())
        return flow
"""

import lazy_loader

__version__ = "0.1.0"
_loaded, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Return what is loaded at its first use; called by Python for what is not there yet."""
    if name in __all__ or name.startswith("_"):
        return _loaded(name)
    from weir.spelling import did_you_mean

    raise AttributeError(f"weir has no {name!r}{did_you_mean(name, __all__)}")
