"""A small file system in memory that can be filled up: a full disk without harm to the machine's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from weir.errors import WeirError

#: The file that takes the room; not counted by :func:`disk_bytes`.
_BALLAST = "weir-ballast"
_FILL_BYTES = 1 << 20


class NoSmallDiskError(WeirError):
    """This machine does not let us mount one; the message says why."""


class SmallDisk:
    """A tmpfs at ``path``, made and mounted; needs root. :meth:`close` unmounts it."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Mount it.

        Raises:
            NoSmallDiskError: it cannot be mounted here.
        """
        self.path = path
        self._ballast = path / _BALLAST
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoSmallDiskError(f"cannot mount a tmpfs: {error}") from error
        if done.returncode:
            raise NoSmallDiskError(f"cannot mount a tmpfs: {done.stderr.strip()}")
        self._mounted = True

    def fill(self) -> None:
        """Take all the room there is; again is harmless, and takes what has been freed."""
        with open(self._ballast, "ab") as file:
            size_bytes = _FILL_BYTES
            while size_bytes:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size_bytes)
                except OSError:
                    size_bytes //= 16
                else:
                    file.truncate(file.seek(0, os.SEEK_END))

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it, whoever still has files open there; what it held is gone. Safe to call twice."""
        if self._mounted:
            self._mounted = False
            subprocess.run(["umount", "--lazy", str(self.path)], check=False, capture_output=True)


def disk_bytes(directory: Path) -> int:
    """Bytes of all files below a directory; files with several names count once."""
    sizes: dict[int, int] = {}
    for root, _, names in os.walk(directory):
        for name in names:
            if name == _BALLAST:
                continue
            try:
                facts = os.lstat(os.path.join(root, name))
            except OSError:
                continue
            sizes[facts.st_ino] = facts.st_size
    return sum(sizes.values())
