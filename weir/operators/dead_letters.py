"""The dead-letter file: records that could not be processed, each with its position and the reason.

Format: JSON lines, one object per record:

=============  ==========================================================================================
``source``     file (or other origin) of the record
``position``   byte offset (row number in Parquet) in the source; -1 where there is none
``length``     full length of the record in bytes
``reason``     one line
``raw``        the record as text, bytes that are not UTF-8 replaced; cut at ``raw_bytes_max`` bytes
``raw_base64`` the same bytes exactly; only where they are not valid UTF-8
``truncated``  whether ``raw`` was cut
``generation`` of the deployment that wrote it; only of rows that a step put aside
``checkpoint`` the last one whose barrier the subtask had seen, or from which it had started; with ``generation``
=============  ==========================================================================================
"""

from __future__ import annotations

import base64
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import orjson

from weir.errors import InputError
from weir.operators.known_rows import KnownRows
from weir.security.private_files import private_directory
from weir.specs import OnBadRecord

log = logging.getLogger(__name__)

#: Bytes of a rejected record that the file keeps, unless told otherwise.
RAW_BYTES_MAX = 4096

#: Records, written since the snapshot that a source goes back to, that are remembered.
KNOWN_MAX = 200_000

_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_CUT_CHARACTER_BYTES_MAX = 3


class DeadLetterFile:
    """Implements :class:`weir.author.operator.DeadLetters` for one operator of one subtask.

    The file is ``<directory>/<job>/<operator>.<subtask>.jsonl``, appended to and opened at the first record,
    so a clean run leaves nothing behind. Each record reaches the operating system before ``reject`` returns:
    it survives the death of the process. Called by the subtask's thread only.

    Once each, also when a source goes back and rejects a record again, as long as its subtask comes back to the
    same file. On another machine, or beyond ``KNOWN_MAX`` records to be remembered, a record can be there twice: its
    source and position tell.
    """

    def __init__(
        self,
        directory: str | Path,
        job: str,
        operator: str,
        subtask_index: int,
        on_bad_record: OnBadRecord = "dead_letter",
        raw_bytes_max: int = RAW_BYTES_MAX,
        known_rows: KnownRows | None = None,
        passed_id: Callable[[], int] = int,
    ) -> None:
        """``known_rows``: of a step; ``passed_id`` gives the last checkpoint whose barrier the subtask has seen."""
        self._stem = letters_stem(directory, job, operator)
        self.path = Path(f"{self._stem}.{subtask_index}.jsonl")
        #: Source and position of records that are in the files already and will be rejected again.
        self._known: Counter[tuple[str, int]] = Counter()
        #: Records rejected so far.
        self.rejected = 0
        #: Source, position and reason of the first of them.
        self.first: tuple[str, int, str] | None = None
        self._told_at = 1
        #: Name of the step.
        self.operator = operator
        self._on_bad_record = on_bad_record
        self._raw_bytes_max = raw_bytes_max
        self._known_rows = known_rows
        self._passed_id = passed_id
        self._file: BinaryIO | None = None
        #: What was in the file before this one writes; None: nobody has asked.
        self._bytes_before: int | None = None

    def reject(
        self, source: str, position: int, reason: str, raw: bytes, length_bytes: int | None = None
    ) -> None:
        """Write one rejected record and count it.

        Args:
            source: file path (or other origin) of the record.
            position: byte offset of the record in ``source``; -1 where there is none.
            reason: one line a person understands.
            raw: the record's bytes, or their beginning.
            length_bytes: full length, where ``raw`` is only the beginning.

        Raises:
            InputError: the job stops at bad records, or the file cannot be written.
        """
        self.rejected += 1
        if self.first is None:
            self.first = source, position, reason
        if self._on_bad_record == "fail":
            raise InputError(
                f"{source} at byte {position}: {reason}; correct the record, or let the source "
                f'{self.operator} put bad records aside with on_bad_record="dead_letter"'
            )
        if self._known and self._known[source, position]:
            self._known[source, position] -= 1
            return
        self._tell(source, position, reason)
        length = len(raw) if length_bytes is None else length_bytes
        kept = raw[: self._raw_bytes_max]
        entry: dict[str, object] = {
            "source": source,
            "position": position,
            "length": length,
            "reason": reason,
            "raw": kept.decode("utf-8", "replace"),
            "truncated": len(kept) < length,
        }
        if not _is_utf8(kept, len(kept) < length):
            entry["raw_base64"] = base64.b64encode(kept).decode()
        if self._known_rows is not None:
            checkpoint_id = max(self._known_rows.restored_id, self._passed_id())
            if self._known_rows.claim(length, str(entry["raw"]), checkpoint_id):
                return
            entry["generation"] = self._known_rows.generation
            entry["checkpoint"] = checkpoint_id
        try:
            if self._file is None:
                self._file = self._open()
            self._file.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            raise InputError(
                f"cannot write dead letters to {self.path}: {error.strerror}; make the directory writable"
            ) from error

    def _tell(self, source: str, position: int, reason: str) -> None:
        """Warn of the first one, the tenth, the hundredth and so on: a log must not grow with bad input."""
        if self.rejected < self._told_at:
            return
        self._told_at = 10 ** len(str(self.rejected))
        place = f"{source} at {position}" if position >= 0 else source
        log.warning(
            "%s: %d rejected so far, this one is %s: %s; dead letters: %s",
            self.operator,
            self.rejected,
            place,
            reason,
            self.path,
        )

    def position_bytes(self) -> int:
        """How much is in the file; see :class:`weir.author.operator.RepeatableDeadLetters`."""
        # Sources ask with every batch, and nobody else writes.
        if self._file is not None:
            return self._file.tell()
        if self._bytes_before is None:
            try:
                self._bytes_before = self.path.stat().st_size
            except OSError:
                self._bytes_before = 0
        return self._bytes_before

    def skip_known(self, positions: Mapping[int, int]) -> None:
        """Remember what is in the files after these positions; files that are not on this machine are passed over."""
        for index, position in positions.items():
            try:
                with open(f"{self._stem}.{index}.jsonl", "rb") as file:
                    file.seek(position)
                    for line in file:
                        if self._known.total() >= KNOWN_MAX:
                            return
                        self._remember(line)
            except OSError:
                continue

    def _remember(self, line: bytes) -> None:
        try:
            entry = orjson.loads(line)
            self._known[entry["source"], entry["position"]] += 1
        except (orjson.JSONDecodeError, KeyError, TypeError):
            # Cut short by the death of a process: the record is written again.
            return

    def _open(self) -> BinaryIO:
        private_directory(self.path.parent)
        file = open(self.path, "a+b", buffering=0)  # noqa: SIM115
        if file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        return file

    def close(self) -> None:
        """Release the file; safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = self._bytes_before = None


def letters_stem(directory: str | Path, job: str, operator: str) -> str:
    """Path of the dead-letter files of an operator, without subtask index and ending."""
    return str(Path(directory) / _file_name(job) / _file_name(operator))


def _file_name(name: str) -> str:
    return _NOT_IN_FILE_NAMES.sub("_", name).lstrip(".") or "_"


def _is_utf8(raw: bytes, cut: bool) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        # A cut may fall inside a character, which does not make the record binary.
        return (
            cut
            and error.reason == "unexpected end of data"
            and error.start >= len(raw) - _CUT_CHARACTER_BYTES_MAX
        )
    return True
