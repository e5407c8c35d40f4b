"""What the files of a checkpoint store are called; ``checkpoint_store`` shows the whole."""

from __future__ import annotations

import re

MANIFESTS, FILES = "manifests", "files"
#: Durable rows of sinks that are not delivered yet; the sinks write and remove them.
SINKS = "sinks"
_SUFFIX = ".json"
#: Folder of the files that came from a savepoint.
_SAVEPOINT = "savepoint"
_ID_DIGITS = 12

#: The end of the path of a manifest.
_MANIFEST = re.compile(rf"(^|/){MANIFESTS}/\d+{re.escape(_SUFFIX)}$")


def files_folder(checkpoint_id: int) -> str:
    """The folder of the files that are published for a checkpoint."""
    return f"{FILES}/{checkpoint_id:0{_ID_DIGITS}}"


def manifest_path(checkpoint_id: int) -> str:
    """Where the manifest of a checkpoint is."""
    return f"{MANIFESTS}/{checkpoint_id:0{_ID_DIGITS}}{_SUFFIX}"


def imported_path(checkpoint_id: int, path: str) -> str:
    """Where a file of a savepoint is in the store of the job that starts from it."""
    return f"{files_folder(checkpoint_id)}/{_SAVEPOINT}/{path.removeprefix(f'{FILES}/')}"


def path_in_savepoint(path: str) -> str:
    """Where such a file is in the savepoint; "": the path is not of such a file."""
    _, found, rest = path.partition(f"/{_SAVEPOINT}/")
    return f"{FILES}/{rest}" if found else ""


def checkpoint_of(path: str) -> int | None:
    """The number of the checkpoint to which a path of a manifest or file belongs; None: it is not ours."""
    name = path.split("/")[1].removesuffix(_SUFFIX) if "/" in path else ""
    return int(name) if name.isascii() and name.isdigit() else None


def is_manifest(path: str) -> bool:
    """Return whether a path below the store is that of a manifest."""
    return path.endswith(_SUFFIX) and checkpoint_of(path) is not None


def divided(path: str) -> tuple[str, str] | None:
    """A path that ends in that of a manifest: the store's path, and the manifest's below it; None: it does not."""
    named = _MANIFEST.search(path)
    if named is None:
        return None
    return path[: named.start()] or ("/" if path.startswith("/") else "."), named.group().removeprefix("/")
