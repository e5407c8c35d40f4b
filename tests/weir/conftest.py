"""What tests of different parts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.s3_server import s3_server


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """Port of an S3 server with the bucket ``bucket``; it takes 2 s of a core to start. Folders are the tests' own."""
    with s3_server() as port:
        yield port
