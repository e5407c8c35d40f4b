"""Files that hold no lines of text, told by their first bytes: else each of their lines would be a dead letter."""

from __future__ import annotations

import shlex

#: Bytes that tell.
BEGIN_BYTES = 16
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh91AY&SY": "bz2",
    b"\x04\x22\x4d\x18": "lz4",
}
_OTHERS = {
    b"PAR1\x15": ("a Parquet file", "read it with weir.Parquet"),
    b"ARROW1\0\0": ("an Arrow IPC file", "read it with weir.ArrowIpc"),
    b"\xfd7zXZ\0": ("compressed with xz", "unpack it"),
    b"PK\x03\x04": ("a zip archive", "unpack it"),
    b"Obj\x01": ("an Avro file", "make JSON lines or Parquet of it"),
}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def foreign_form(path: str, begin: bytes) -> str | None:
    """What a file is that begins so, and what to do; None: it may be lines of text.

    Args:
        path: the file.
        begin: its first ``BEGIN_BYTES``, or fewer if there are no more; not decompressed.
    """
    for mark, codec in _COMPRESSED.items():
        if begin.startswith(mark):
            return f'compressed with {codec}, which its name does not say; say compression="{codec}"'
    for mark, (form, mend) in _OTHERS.items():
        if begin.startswith(mark):
            return f"{form}; {mend}"
    if begin.startswith(_UTF_16):
        return f"UTF-16; make UTF-8 of it: iconv -f UTF-16 -t UTF-8 {shlex.quote(path)}"
    return None
