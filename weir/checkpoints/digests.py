"""Digests of checkpoint files, by which damage is found: XXH3 of 128 bits, 32 hexadecimal digits.

They tell what a disk, a copy or a network has done to a file, not what somebody has done on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import xxhash

from weir.errors import CheckpointError

_CHUNK_BYTES = 1 << 20
_SEALED = re.compile(rb'\{"digest":"([0-9a-f]{32})",')


def digest_of(path: Path, is_over: Callable[[], bool] = bool) -> str:
    """The digest of a file's content; "" if ``is_over`` says so between two pieces of it.

    Raises:
        OSError: it cannot be read.
    """
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if is_over():
                return ""
            digest.update(chunk)
    return digest.hexdigest()


def sealed(document: bytes) -> bytes:
    """A JSON object (not empty, as ``orjson`` writes it) that begins with the digest of its own bytes without it."""
    return b'{"digest":"%s",%s\n' % (xxhash.xxh3_128_hexdigest(document).encode(), document[1:])


def unsealed(data: bytes) -> tuple[bytes, bool]:
    """The object, and whether it has a digest: :func:`sealed` wrote it.

    Raises:
        CheckpointError: the digest is that of other bytes.
    """
    found = _SEALED.match(data)
    if found is None:
        return data, False
    document = b"{" + data[found.end() :].removesuffix(b"\n")
    if xxhash.xxh3_128_hexdigest(document).encode() != found[1]:
        raise CheckpointError("its content is not what was written, so it is damaged")
    return document, True
