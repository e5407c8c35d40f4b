"""Where savepoints that somebody asks for over HTTP may go: below the configured roots, and nowhere else."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from weir.redaction import redacted_text

_SHOWN_CHARACTERS_MAX = 200
_MEND = "choose a path below one of them, or add a root to controlPlane.savepoint_roots"


class SavepointPathError(Exception):
    """The path is not below a root; one line."""


def savepoint_uri(path: str, roots: Sequence[str]) -> str:
    """The place of a savepoint as the checkpoint store takes it.

    Local paths are absolute, and have no links any more. A URI below a root gets the root's credentials and options.

    Args:
        path: as the caller of ``POST /savepoint`` gave it; a relative one is below the working directory.
        roots: ``controlPlane.savepoint_roots``.

    Raises:
        SavepointPathError: it is not below a root, or would not stay there: ``..``, a symbolic link that leads out,
            another scheme or service.
    """
    if any(unicodedata.category(character) == "Cc" for character in path):
        raise _refused(path, roots)
    for root in roots:
        try:
            found = _below(path, root)
        except (OSError, ValueError, RuntimeError):
            # No path, or links in a circle.
            continue
        if found is not None:
            return found
    raise _refused(path, roots)


def _below(path: str, root: str) -> str | None:
    """The place of ``path`` if it is below ``root``."""
    asked, allowed = urlsplit(path), urlsplit(root)
    if not _is_local(allowed):
        return _uri_below(asked, allowed)
    if not _is_local(asked):
        return None
    steps = _local(path, asked)
    if ".." in steps.parts:
        return None
    resolved, base = steps.resolve(), _local(root, allowed).resolve()
    return str(resolved) if base in resolved.parents else None


def _uri_below(asked: SplitResult, allowed: SplitResult) -> str | None:
    base, steps = allowed.path.strip("/").split("/"), asked.path.strip("/").split("/")
    base = [] if base == [""] else base
    user = asked.netloc.rpartition("@")[0]
    if (
        asked.scheme != allowed.scheme
        or _service(asked) != _service(allowed)
        or user not in ("", allowed.netloc.rpartition("@")[0])
        or asked.query not in ("", allowed.query)
        or asked.fragment
        or any(unquote(step) in ("", ".", "..") or "/" in unquote(step) for step in steps)
        or len(steps) <= len(base)
        or steps[: len(base)] != base
    ):
        return None
    return allowed._replace(path="/" + "/".join(steps)).geturl()


def _service(uri: SplitResult) -> str:
    return uri.netloc.rpartition("@")[2]


def _is_local(uri: SplitResult) -> bool:
    """Return whether a URI is local, as :func:`weir.checkpoints.opened_place.open_place` decides it."""
    return uri.scheme in ("", "file")


def _local(text: str, uri: SplitResult) -> Path:
    return Path(uri.path if uri.scheme else text)


def _refused(path: str, roots: Sequence[str]) -> SavepointPathError:
    shown = redacted_text(path)
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = shown[:_SHOWN_CHARACTERS_MAX] + "..."
    if not roots:
        return SavepointPathError(
            f"no savepoint can be made at {shown!r}: list directories for savepoints in controlPlane.savepoint_roots"
        )
    known = ", ".join(redacted_text(root) for root in roots)
    return SavepointPathError(
        f"no savepoint can be made at {shown!r}: it is not below the roots ({known}); {_MEND}"
    )
