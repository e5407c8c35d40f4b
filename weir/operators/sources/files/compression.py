"""Compressed input files: which codec a file has, and its decompressed bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import pyarrow as pa

from weir.errors import InputError

#: Endings of names, and the codecs of pyarrow that they stand for.
SUFFIXES = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bz2",
    ".lz4": "lz4",
}
#: Endings of what is packed in another way: nobody wants its bytes as lines.
_UNREAD = (
    ".xz",
    ".zip",
    ".br",
    ".7z",
    ".rar",
    ".tar",
    ".tgz",
    ".tar.gz",
    ".tar.bz2",
    ".tar.zst",
    ".snappy",
    ".z",
)
#: Asked for at a time: what is lost of it when the stream breaks off is read again, byte by byte.
_READ_BYTES = 256 << 10
_SKIP_BYTES = 1 << 20


def codec_of(path: str, compression: str) -> str | None:
    """The codec of a file, None: it is plain.

    Args:
        path: the file.
        compression: "auto": as its name ends; "none"; or the codec.

    Raises:
        InputError: by its name it is packed in a way that is not read.
    """
    if compression != "auto":
        return None if compression == "none" else compression
    if path.lower().endswith(_UNREAD):
        raise InputError(
            f"cannot read input {path}: files that are packed in this way are not read; unpack it, or write it as "
            ".gz, .zst, .bz2 or .lz4. With compression=None it is read as it is"
        )
    return next((codec for suffix, codec in SUFFIXES.items() if path.lower().endswith(suffix)), None)


def decompressed(open_file: Callable[[], BinaryIO], codec: str) -> BinaryIO:
    """A file's content; positions are decompressed ones, and seeking back begins anew.

    All that can be decompressed is given before a broken stream raises ``OSError``.
    """
    return cast(BinaryIO, _Decompressed(open_file, codec))


class _Decompressed(io.RawIOBase):
    def __init__(self, open_file: Callable[[], BinaryIO], codec: str) -> None:
        super().__init__()
        self._open_file = open_file
        self._codec = codec
        self._at = 0
        #: The stream is broken, and everything before that place was given.
        self._failure: Exception | None = None
        self._file: BinaryIO | None = None
        self._begin()

    def _begin(self) -> None:
        self._end()
        self._at = 0
        self._file = self._open_file()
        self._stream: Any = pa.CompressedInputStream(pa.PythonFile(self._file, "r"), self._codec)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 1:
            offset += self._at
        if whence == 2:
            raise io.UnsupportedOperation("the end of a compressed file is not known")
        if offset < self._at:
            self._begin()
        while self._at < offset:
            skipped = len(self._stream.read(min(_SKIP_BYTES, offset - self._at)))
            if not skipped:
                break
            self._at += skipped
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[:_READ_BYTES]
        if self._failure is not None:
            raise self._failure
        try:
            count = int(self._stream.readinto(view))
        except (OSError, pa.ArrowException) as error:
            self._failure = error
            at = self._at
            self._begin()
            self.seek(at)
            return self._read_singly(view)
        self._at += count
        return count

    def _read_singly(self, view: memoryview) -> int:
        """What there is before the place where the stream is broken: a longer read returns nothing of it."""
        count = 0
        try:
            while count < len(view) and (byte := self._stream.read(1)):
                view[count : count + 1] = byte
                count += 1
        except (OSError, pa.ArrowException):
            if not count:
                raise
        self._at += count
        return count

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()

    def close(self) -> None:
        self._end()
        super().close()
