"""What sources of lines share: JSON lines and CSV. Files are read in windows of whole lines, cut to byte ranges."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from weir.errors import InputError
from weir.operators.sources.files.compression import codec_of
from weir.operators.sources.files.file_reader import FileReader
from weir.operators.sources.files.foreign_files import BEGIN_BYTES, foreign_form
from weir.operators.sources.files.positions import FileMark, Rest, mark_beginning
from weir.operators.sources.files.splits import (
    Split,
    after_last_line,
    assign,
    count_lines,
    cut_splits,
    line_quotas,
    plan_splits,
)
from weir.operators.sources.json.json_decode import Decoded
from weir.operators.sources.json.json_strict import too_long
from weir.operators.sources.lines.line_reader import BUFFER_BYTES, LineReader, OverlongLine
from weir.specs import CsvSpec, JsonLinesSpec

#: Bytes that a paced source holds, unless a line is longer.
PACED_BUFFER_BYTES = 256 << 10


class LineSource(FileReader):
    """Reads one subtask's splits of files of lines; subclasses decode.

    Lines that are not good go to ``context.dead_letters`` with their byte offset. Replayable: a snapshot holds the byte
    offset of the first line whose row was not given out.
    """

    def __init__(self, spec: JsonLinesSpec | CsvSpec) -> None:
        super().__init__(spec)
        self._line_spec = spec
        self._pending: list[Split] = []
        self._reader: LineReader | None = None
        #: Nothing of the split has been decoded.
        self._is_unread = False
        #: Of the reader before, for the next one.
        self._buffer: bytearray | None = None
        if spec.grows:
            self._may_grow = self._keeps_files = True
        #: Of files that may grow, and of which nothing is waiting: up to where they were read.
        self._read_to: dict[str, int] = {}
        #: What they had up to there: another file in its place may be as long, and have a line that begins there.
        self._read_marks: dict[str, FileMark] = {}
        #: Where the last decoded batch begins in the reader's window, and what came of it.
        self._decoded_start = 0
        self._decoded: Decoded | None = None

    def close(self) -> None:
        """Release the file."""
        if self._reader is not None:
            self._reader.close()
            self._buffer = self._reader.buffer
            self._reader = None

    @abstractmethod
    def _begin_split(self, reader: LineReader) -> None:
        """A split was opened, and nothing of it was decoded."""

    @abstractmethod
    def _decode_lines(self, reader: LineReader, may_be_more: bool) -> Decoded:
        """Decode some lines of the reader's window, which is not empty.

        Args:
            reader: where the lines are.
            may_be_more: what the last line begins may go on after it. If it is all that there is, nothing is decoded,
                and ``next_start`` is where the window starts.
        """

    @abstractmethod
    def _line_of_row(self, reader: LineReader, row: int) -> int:
        """Position in the reader's window of the line that gave a row of the last decoded batch."""

    def _open_files(self, paths: Sequence[str]) -> None:
        splits = plan_splits(
            paths,
            self._subtasks,
            whole_files=self._keeps_files,
            files=self._files,
            compression=self._line_spec.compression,
        )
        self._read_shares(assign([split.size_bytes for split in splits], splits, self._subtasks))

    def _look_for_growth(self, sizes: Mapping[str, int]) -> bool:
        if sizes:
            # Not while the directory looks empty: its disk may not be mounted.
            for path in [path for path in self._read_to if path not in sizes]:
                del self._read_to[path]
                self._read_marks.pop(path, None)
                self._forget(path)
        return any([self._read_on(path, sizes[path]) for path in list(self._read_to) if path in sizes])

    def _read_on(self, path: str, size_bytes: int) -> bool:
        """Read what was added to a file, up to its last whole line; whether there is any."""
        read_to = self._read_to[path]
        if size_bytes < read_to:
            raise InputError(
                f"input {path} has become shorter: {read_to} bytes were read of it, and it has {size_bytes}; "
                "let files only grow, and give a new file a new name"
            )
        if size_bytes == read_to:
            return False
        known = self._read_marks.get(path)
        if known is not None and known != mark_beginning(path, read_to, self._files):
            raise InputError(
                f"input {path} has other content than before: {read_to} bytes were read of it, and they have changed; "
                "let files only grow, and give a new file a new name"
            )
        stop = after_last_line(self._files, path, read_to, size_bytes)
        if stop == read_to:
            return False
        del self._read_to[path]
        split = Split(path, read_to, stop, resumed=read_to > 0)
        self._pending.insert(0, split)
        self._hold([split])
        return True

    def _add_file(self, path: str, size_bytes: int) -> None:
        if self._may_grow:
            self._read_to[path] = 0
            self._read_on(path, size_bytes)
            return
        split = Split(path, 0, size_bytes, codec_of(path, self._line_spec.compression))
        self._pending.insert(0, split)
        self._hold([split])

    def _resume_input(self, shares: list[list[Rest]]) -> None:
        if self._may_grow:
            for rest in shares[self._rank]:
                if rest.start == rest.stop:
                    self._read_to[rest.path] = rest.stop
                    self._read_marks[rest.path] = mark_beginning(rest.path, rest.stop, self._files)
            self._hold_quiet(list(self._read_to))
            shares = [[rest for rest in share if rest.start < rest.stop] for share in shares]
        self._read_shares([[self._split(rest) for rest in share] for share in shares])

    def _split(self, rest: Rest) -> Split:
        codec = codec_of(rest.path, self._line_spec.compression)
        return Split(rest.path, rest.start, rest.stop, codec, rest.begun, rest.rejected_to)

    def _share(self, rests: list[Rest]) -> list[list[Rest]]:
        if self._keeps_files:
            return super()._share(rests)
        splits = cut_splits([self._split(rest) for rest in rests], self._subtasks)
        shares = assign([split.size_bytes for split in splits], splits, self._subtasks)
        return [[_rest(split) for split in share] for share in shares]

    def _read_shares(self, shares: list[list[Split]]) -> None:
        self._assigned = shares
        self._pending = shares[self._rank][::-1]
        # A source that gives out few rows reads little at a time, so that no poll takes long.
        self._buffer_bytes = PACED_BUFFER_BYTES if self.is_trickle else BUFFER_BYTES
        self._hold(shares[self._rank])

    def _rests(self) -> list[Rest]:
        rests = [_rest(split) for split in reversed(self._pending)]
        reader = self._reader
        if reader is not None:
            handled_to = reader.line_offset(reader.start)
            start = handled_to
            if self._decoded_rows is not None:
                start = reader.line_offset(self._line_of_row(reader, self._first_left_row))
            split = reader.split
            at_end = reader.at_end and self._decoded_rows is None
            if self._may_grow:
                start = min(start, split.stop_bytes)
                at_end = False
            if not at_end and (split.compressed or self._may_grow or start < split.stop_bytes):
                rejected_to = max(handled_to, split.rejected_to_bytes)
                rests.insert(0, Rest(split.path, start, split.stop_bytes, rejected_to, begun=True))
        rests += [Rest(path, read_to, read_to, begun=True) for path, read_to in self._read_to.items()]
        return rests

    def _place_of_row(self, row: int) -> tuple[str, int, str]:
        assert self._reader is not None
        return self._reader.path, self._reader.line_offset(self._line_of_row(self._reader, row)), ""

    def _input_quota(self, events_max: int) -> int:
        return line_quotas(events_max, self._assigned, self._count_rows)[self._rank]

    def _count_rows(self, splits: Sequence[Split], enough: int) -> int:
        """Rows in splits, as far as can be told without decoding them; counted until there are ``enough``."""
        return count_lines(splits, enough, self._files)

    def _read_batch(self) -> pa.RecordBatch | None:
        while True:
            if self._reader is None:
                if not self._pending:
                    self._goes_on_to(None)
                    return None
                split = self._pending.pop()
                self._goes_on_to(split.path)
                self._reader = LineReader(
                    split, self._line_spec.line_bytes_max, self._buffer_bytes, self._files, self._buffer
                )
                self._buffer = None
                self._is_unread = True
                self._begin_split(self._reader)
            batch = self._decode(self._reader)
            if batch is None:
                if self._may_grow:
                    path, read_to = self._reader.path, self._reader.split.stop_bytes
                    self._read_to[path], self._read_marks[path] = read_to, self._reader.mark(read_to)
                self.close()
            elif batch.num_rows:
                return batch

    def _decode(self, reader: LineReader) -> pa.RecordBatch | None:
        """Decode some lines, maybe none of them good; None at the end of the split."""
        decoded = decode_next(
            reader, partial(self._decode_window, reader), partial(self._reject_overlong, reader.split)
        )
        if decoded is None:
            return None
        self._decoded_start, self._decoded = reader.start, decoded
        for rejection in decoded.rejections:
            raw = reader.data[rejection.start : rejection.stop].tobytes().rstrip(b"\r\n")
            self._reject(reader.split, reader.base_offset + rejection.start, rejection.reason, raw)
        reader.start = decoded.next_start
        return decoded.batch

    def _decode_window(self, reader: LineReader, may_be_more: bool) -> Decoded:
        """Decode a window of lines, as :meth:`_decode_lines` does, and check the beginning of a file.

        Raises:
            InputError: the window is the beginning of a file without lines of text; unless the source follows its
                directory, where a wrong file does not end the job.
        """
        if self._is_unread:
            self._is_unread = False
            if reader.base_offset == 0 and reader.split.codec is None and not self._follows:
                form = foreign_form(reader.path, reader.data[: min(reader.stop, BEGIN_BYTES)].tobytes())
                if form is not None:
                    raise InputError(f"input {reader.path} has no lines of text: it is {form}")
        return self._decode_lines(reader, may_be_more)

    def _reject_overlong(self, split: Split, line: OverlongLine) -> None:
        reason = too_long(self._line_spec.line_bytes_max)
        self._reject(split, line.position, reason, line.head, line.length_bytes)

    def _reject(
        self, split: Split, position: int, reason: str, raw: bytes, length_bytes: int | None = None
    ) -> None:
        if position < split.rejected_to_bytes:
            return
        self.rejected += 1
        path = split.path
        if self._line_spec.on_bad_record == "fail":
            raise InputError(
                f"{path} at byte {position}: {reason}; correct the line, or let the source "
                f'{self._context.operator_name} put bad records aside with on_bad_record="dead_letter"'
            )
        if self._context.dead_letters is not None:
            self._context.dead_letters.reject(path, position, reason, raw, length_bytes)


def decode_next(
    reader: LineReader, decode: Callable[[bool], Decoded], on_overlong: Callable[[OverlongLine], None]
) -> Decoded | None:
    """Decode lines of a reader's window, which is filled and enlarged as needed; the caller moves ``start`` then.

    Args:
        reader: where the lines are.
        decode: :meth:`LineSource._decode_lines` of this reader.
        on_overlong: called with lines that were passed over.

    Returns:
        None at the end of the split.

    Raises:
        InputError: the file cannot be read any further, and all whole records before that place were decoded.
    """

    def refill(grows: bool) -> None:
        for line in reader.refill(grows):
            on_overlong(line)

    # Refilled when a batch like the last may not be there: each time what is left is moved, as a part of a batch is.
    enough_bytes = min(reader.batch_bytes + reader.batch_bytes // 8, len(reader.data) // 2)
    if not reader.exhausted and reader.stop - reader.start < enough_bytes:
        refill(False)
    if reader.start == reader.stop:
        reader.check()
        return None
    decoded = decode(not reader.at_last_line)
    while decoded.next_start == reader.start:
        reader.check()
        seen_bytes = reader.stop - reader.start
        refill(True)
        # What is longer than the window may become is not waited for.
        decoded = decode(reader.stop - reader.start > seen_bytes and not reader.at_last_line)
    reader.batch_bytes = decoded.next_start - reader.start
    return decoded


def _rest(split: Split) -> Rest:
    return Rest(split.path, split.start_bytes, split.stop_bytes, split.rejected_to_bytes, split.resumed)
