"""Where input files are: on this machine, or at a place that ``pyarrow.fs`` reads (S3 and others).

Names of remote files are URIs without credentials and settings: they are in checkpoints, dead letters and messages.
"""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import unquote, urlsplit

from pyarrow import fs
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from weir.errors import FailureKind, InputError

#: Attempts at a remote read. The service's own library makes some more within each.
ATTEMPTS_MAX = 5
#: Waits between them, in seconds: up to the first one, doubled each time, at most the second one.
WAIT_S, WAIT_S_MAX = 0.2, 5.0
#: What a remote file is asked for at a time, at least.
_READ_BYTES = 1 << 20
#: After so many reads it is asked whether a file is still the same; and at its end.
_READS_PER_CHECK = 16

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_GLOB_CHARACTERS = frozenset("*[")
#: Marks in the text of errors that will not pass: ``pyarrow.fs`` has no numbers for them.
_DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 403")
_LASTING = (*_DENIED, "NO_SUCH", "HTTP status 40")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of an input."""

    path: str
    size_bytes: int
    #: When it was changed last, epoch µs; 0: not known.
    modified_us: int


def is_uri(path: str) -> bool:
    """Return whether an input is named by a URI and not by a path of this machine."""
    return _URI.match(path) is not None


def is_part(name: str) -> bool:
    """Return whether a file of a directory is input: not hidden, not begun with an underscore, no checksum."""
    return not name.startswith((".", "_")) and not name.endswith(".crc")


def is_found(path: str, pattern: str) -> bool:
    """Return whether a file that matches a glob is input: a part, and in no folder that programs keep for themselves.

    Such folders are called as files that are no parts: ``_temporary``, ``_delta_log``, ``.tmp``. Those that the pattern
    names, and those of values (``_day=7``), are searched.
    """
    *folders, name = path.split("/")
    if not is_part(name):
        return False
    named = pattern.split("/")
    return all(is_part(folder) or "=" in folder or folder in named for folder in folders if folder)


class InputFiles(ABC):
    """A place with files."""

    @abstractmethod
    def find(self, path: str, is_known: Callable[[str], bool] | None = None) -> list[FoundFile]:
        """A file, the parts of a directory, or the matches of a glob, sorted by name; maybe none.

        Args:
            path: what :func:`input_place` returned.
            is_known: of which nothing is wanted but whether it is there: size and time may be -1 and 0. A directory
                that is followed is looked at twice a second, and each size is a call of the system.

        Raises:
            InputError: nothing is there, or it cannot be read.
        """

    @abstractmethod
    def size_bytes(self, path: str) -> int:
        """Size of a file.

        Raises:
            OSError: it cannot be told.
        """

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """A file, opened for reading and seeking.

        Raises:
            OSError: it cannot be opened; also what it raises later.
        """

    def arrow_source(self, path: str) -> Any:
        """A file in the form that readers of pyarrow take."""
        return self.open(path)


def remote_files(uri: str) -> RemoteFiles:
    """The place that a URI names, for its host, credentials and settings.

    Raises:
        InputError: pyarrow does not understand the URI.
    """
    parts = urlsplit(uri)
    name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    # What comes after the last folder without wildcards is not the file system's business.
    folder = _fixed_part(parts.path)
    address = f"{parts.scheme}://{parts.netloc}{folder}" + (f"?{parts.query}" if parts.query else "")
    try:
        filesystem, root = fs.FileSystem.from_uri(address)
    except (OSError, ValueError, NotImplementedError) as error:
        # Its text may have the URI in it, and that the credentials.
        text = " ".join(str(error).replace(address, name).split())
        raise InputError(f"cannot read input {name}: {text[:300]}; correct the URI") from None
    prefix = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{folder}"
    return RemoteFiles(filesystem, prefix.removesuffix(root.strip("/")), root, name)


def _fixed_part(path: str) -> str:
    """The path up to the last slash before its first wildcard; the whole path if there is none."""
    first = min((path.find(mark) for mark in _GLOB_CHARACTERS if mark in path), default=-1)
    return path if first < 0 else path[: path.rfind("/", 0, first)]


class RemoteFiles(InputFiles):
    """Files at a place of ``pyarrow.fs``; :func:`remote_files` makes the object.

    Args:
        filesystem: of ``pyarrow.fs``.
        prefix: what comes before a path of the file system in a name.
        root: the path that the URI named, up to its first wildcard.
        name: the URI without credentials and settings.
    """

    def __init__(self, filesystem: Any, prefix: str, root: str, name: str) -> None:
        self._filesystem = filesystem
        self._prefix = prefix
        self._root = root
        self._name = name
        #: Sizes and times of files as they were found.
        self._found: dict[str, tuple[int, int]] = {}

    def find(self, path: str, is_known: Callable[[str], bool] | None = None) -> list[FoundFile]:
        """Find files, as the base class says; ``path`` is the URI that the place was made from."""
        pattern = unquote(urlsplit(path).path)
        wildcards = pattern[len(_fixed_part(pattern)) :]
        try:
            infos = self._retried(lambda: self._infos(wildcards))
        except OSError as error:
            raise self.failed(self._name, error) from error
        found = [
            FoundFile(self._prefix + info.path.lstrip("/"), info.size, (info.mtime_ns or 0) // 1000)
            for info in infos
        ]
        self._found = {file.path: (file.size_bytes, file.modified_us) for file in found}
        return sorted(found, key=lambda file: file.path)

    def _infos(self, wildcards: str) -> list[Any]:
        root = self._root.rstrip("/")
        if wildcards:
            match = re.compile(re.escape(root) + _glob_expression(wildcards)).fullmatch
            infos = self._filesystem.get_file_info(
                fs.FileSelector(root, recursive=wildcards.count("/") > 1, allow_not_found=True)
            )
            pattern = root + wildcards
            files = [i for i in infos if i.type == fs.FileType.File and match(i.path)]
            return [i for i in files if is_found(i.path, pattern)]
        info = self._filesystem.get_file_info(root)
        if info.type == fs.FileType.File:
            return [info]
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError("there is no such file or directory")
        infos = self._filesystem.get_file_info(fs.FileSelector(root))
        return [i for i in infos if i.type == fs.FileType.File and is_part(i.base_name)]

    def size_bytes(self, path: str) -> int:
        """Return the size of a file, as the base class says; a file that was listed is not asked for again."""
        size_bytes, _ = self._found.get(path) or self._retried(lambda: self._state(path))
        return size_bytes

    def _state(self, path: str) -> tuple[int, int]:
        """Size of a file, and when it was changed last."""
        info = self._filesystem.get_file_info(self._at(path))
        if info.type != fs.FileType.File:
            raise FileNotFoundError(2, "there is no such file")
        return int(info.size), (info.mtime_ns or 0) // 1000

    def open(self, path: str) -> BinaryIO:
        """Open a file, as the base class says; reads that fail are tried again, with longer and longer waits.

        An object may be replaced between two reads, and the service returns the new one then: what it was when it was
        found is compared now and again, and at the end.
        """
        found = self._found.get(path) or self._retried(lambda: self._state(path))

        def check() -> None:
            if self._retried(lambda: self._state(path)) != found:
                raise InputError(
                    f"input {path} was replaced while it was read; start again without the checkpoint, and give a "
                    "new file a new name"
                )

        raw = _RemoteFile(lambda: self._filesystem.open_input_file(self._at(path)), self._retried, check)
        return cast(BinaryIO, io.BufferedReader(raw, _READ_BYTES))

    def _at(self, path: str) -> str:
        at = path.removeprefix(self._prefix)
        return f"/{at}" if self._root.startswith("/") else at

    def _retried(self, work: Callable[[], _Result]) -> _Result:
        attempts = Retrying(
            stop=stop_after_attempt(ATTEMPTS_MAX),
            wait=wait_random_exponential(multiplier=WAIT_S, max=WAIT_S_MAX),
            retry=retry_if_exception(_passes),
            reraise=True,
        )
        return attempts(work)

    def failed(self, path: str, error: OSError) -> InputError:
        """What to raise (``from error``) for an error of this place."""
        return unreadable(path, error)


def unreadable(path: str, error: BaseException, mend: str = "check the file") -> InputError:
    """What to raise (``from error``) for an error about a file: an outage if it may pass."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:300] or type(error).__name__
    if is_uri(path) and _passes(error):
        made = InputError(f"cannot read input {path}: {reason}; check endpoint, network and credentials")
        made.failure_kind = FailureKind.OUTAGE
        return made
    if is_uri(path) and any(mark in str(error) for mark in _DENIED):
        mend = "check credentials and permissions"
    return InputError(f"cannot read input {path}: {reason}; {mend}")


def _passes(error: BaseException) -> bool:
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError | PermissionError):
        return False
    return not any(mark in str(error) for mark in _LASTING)


def _glob_expression(pattern: str) -> str:
    """A glob as a regular expression; ``**`` as a whole part stands for any number of folders."""
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append("(?:[^/]+/)*")
            continue
        text = re.escape(part).replace(r"\*", "[^/]*")
        text = re.sub(r"\\\[(!|\^)?(.*?)\\\]", lambda found: f"[{'^' if found[1] else ''}{found[2]}]", text)
        parts.append(text + "/")
    return "".join(parts).removesuffix("/")


class _RemoteFile(io.RawIOBase):
    """A remote file that is opened again where a read failed."""

    def __init__(
        self,
        open_file: Callable[[], Any],
        retried: Callable[[Callable[[], Any]], Any],
        check: Callable[[], None],
    ) -> None:
        """``check`` raises if the file is another one by now."""
        super().__init__()
        self._open = open_file
        self._retried = retried
        self._check, self._reads = check, 0
        self._file: Any = None
        self._at = 0
        self._size = int(retried(self._opened).size())

    def _opened(self) -> Any:
        if self._file is None:
            self._file = self._open()
        return self._file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        size = min(len(view), self._size - self._at)
        if size <= 0:
            return 0
        data = self._retried(lambda: self._read(size))
        view[: len(data)] = data
        self._at += len(data)
        self._reads += 1
        if self._at >= self._size or not self._reads % _READS_PER_CHECK:
            self._check()
        return len(data)

    def _read(self, size: int) -> Any:
        try:
            return memoryview(self._opened().read_at(size, self._at))
        except OSError:
            self._drop()
            raise

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        self._drop()
        super().close()
