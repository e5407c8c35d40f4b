"""A disk that is full, nearly: writes of this process beyond a size of a file fail."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def file_bytes_limited(bytes_max: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
