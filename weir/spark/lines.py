"""Lines that Spark brings to its tasks, where Weir's reader decodes them: JSON of forms that Spark reads otherwise."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from weir.spark.reading_task import ReadingTask
from weir.specs import JsonLinesSpec

#: A line without its end, and the file that it is of.
LINE_COLUMN, FILE_COLUMN = "_line", "_file"


class LinesTask(ReadingTask):
    """What Spark calls in each task of a stream that reads lines."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the lines."""
        with tempfile.TemporaryDirectory(prefix="weir-spark-") as scratch:
            if _write(batches, Path(scratch)):
                yield from self.read(self._over(scratch))

    def _over(self, directory: str) -> JsonLinesSpec:
        """The same source over files that do not change."""
        spec = self.steps.node.spec
        assert isinstance(spec, JsonLinesSpec), "no other source has lines"
        return replace(spec, path=f"{directory}/**/*.jsonl", follow=False, order="name")


def _write(batches: Iterable[pa.RecordBatch], directory: Path) -> bool:
    """Write the lines to files, in folders that say of rows what those of the original do; whether any came."""
    opened: dict[str, BinaryIO] = {}
    try:
        for batch in batches:
            files = batch.column(FILE_COLUMN).to_pylist()
            for file, line in zip(files, batch.column(LINE_COLUMN).to_pylist(), strict=True):
                if file not in opened:
                    folders = [part for part in file.split("/")[:-1] if "=" in part]
                    place = directory.joinpath(f"{len(opened):06}", *folders)
                    place.mkdir(parents=True)
                    opened[file] = (place / "lines.jsonl").open("wb")
                opened[file].write(line + b"\n")
    finally:
        for each in opened.values():
            each.close()
    return bool(opened)
