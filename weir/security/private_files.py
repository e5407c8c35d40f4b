"""Files and directories that only their owner may read: secrets, state, checkpoints, records."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from weir.errors import ConfigError

_SECRET_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing, for its owner only; one that is there stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    if path.is_dir():
        return
    if path.parent != path:
        private_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not path.is_dir():
        # A file is in the way.
        path.mkdir()


def write_private(path: Path, content: bytes) -> None:
    """Replace a file as a whole; nobody else can read it at any moment.

    Raises:
        OSError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


def read_private(path: Path, setting: str) -> bytes:
    """What a file holds that is a secret.

    Raises:
        ConfigError: it cannot be read, or others can read it; ``setting`` is what names it.
    """
    try:
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            if state.st_mode & _OTHERS:
                raise ConfigError(
                    f"{setting}: {path} can be read by others than its owner; run: chmod 600 {path}"
                )
            return file.read()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from error


def secret_path(configured: str, environment: Mapping[str, str]) -> Path:
    """Where the secret of this user's processes is.

    Raises:
        ConfigError: nothing says where.
    """
    if configured:
        return Path(configured)
    state = environment.get("XDG_STATE_HOME", "")
    try:
        place = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise ConfigError("security.secret_file: this user has no home directory; name a file") from error
    return place / "weir" / "secret"


def machine_secret(path: Path) -> bytes:
    """Read the secret, and make it where it is absent; processes that start at once get the same.

    Raises:
        ConfigError: it can be neither read nor made, or others can read it.
    """
    if not path.exists():
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            private_directory(path.parent)
            write_private(fresh, secrets.token_hex(_SECRET_BYTES).encode() + b"\n")
            try:
                # Unlike a rename, it leaves the file of a process that was faster.
                with suppress(FileExistsError):
                    os.link(fresh, path)
            finally:
                fresh.unlink()
        except OSError as error:
            raise ConfigError(
                f"security.secret_file: {path} cannot be made: {error.strerror}; name a file that can"
            ) from error
    content = read_private(path, "security.secret_file").strip()
    if len(content) < _SECRET_BYTES:
        raise ConfigError(
            f"security.secret_file: {path} has {len(content)} bytes, and needs {_SECRET_BYTES} at least; remove it, "
            "and it is made anew"
        )
    return content
