"""Numba kernels that cut lines and judge their structure, so that no parser sees what could harm it."""

from __future__ import annotations

import numpy as np

from weir.kernels.bytes import byte_at
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BYTES, INT, INTS_2D, TYPES
from weir.kernels.text_masks import line_end

#: A line nested deeper than this is never parsed: parsers recurse.
DEPTH_MAX = 128


@byte_kernel(TYPES.UniTuple(INT, 2)(BYTES, INT, INT, INT, INTS_2D))
def cut_lines(data: np.ndarray, start: int, stop: int, lines_max: int, lines: np.ndarray) -> tuple[int, int]:
    """Find line ends, in the form of :func:`scan_lines` with no line certain.

    Returns:
        Position after the last line, and how many there are.
    """
    at = start
    count = 0
    while at < stop and count < lines_max:
        after = line_end(data, at) + 1
        lines[count, 0] = at
        lines[count, 1] = after
        lines[count, 2] = 0
        count += 1
        at = after
    return at, count


#: Verdicts of :func:`line_shapes`.
SHAPE_OBJECT, SHAPE_BLANK, SHAPE_DEEP, SHAPE_OTHER = range(4)


@byte_kernel_part
def _line_shape(data: np.ndarray, at: int, stop: int) -> int:
    depth = 0
    deepest = 0
    in_string = False
    closed = False
    blank = True
    odd = False
    while at < stop:
        byte = byte_at(data, at)
        at += 1
        if in_string:
            if byte == 0x5C:
                at += 1
            elif byte == 0x22:
                in_string = False
            elif byte < 0x20:
                odd = True
            continue
        if byte == 0x20 or byte == 0x09 or byte == 0x0D or byte == 0x0A:
            continue
        blank = False
        if closed or (depth == 0 and byte != 0x7B):
            odd = True
        if byte == 0x22:
            in_string = True
        elif byte == 0x7B or byte == 0x5B:
            depth += 1
            deepest = max(deepest, depth)
        elif byte == 0x7D or byte == 0x5D:
            depth -= 1
            closed = closed or depth == 0
        elif byte < 0x20 or byte == 0x4E or byte == 0x49:
            # N and I: some parsers take NaN and Infinity for numbers.
            odd = True
    if blank:
        return SHAPE_BLANK
    if deepest > DEPTH_MAX:
        return SHAPE_DEEP
    return SHAPE_OTHER if odd or in_string or not closed else SHAPE_OBJECT


@byte_kernel(TYPES.void(BYTES, INTS_2D, INT, INT, BYTES))
def line_shapes(
    data: np.ndarray, lines: np.ndarray, count: int, line_bytes_max: int, shapes: np.ndarray
) -> None:
    """Judge lines by their brackets and quotes alone.

    ``SHAPE_OBJECT``: exactly one balanced object, if it is JSON at all; a parser of concatenated objects
    makes one row of it. ``SHAPE_BLANK``: white space. ``SHAPE_DEEP``: nested deeper than ``DEPTH_MAX``.
    ``SHAPE_OTHER``: the rest, also lines longer than ``line_bytes_max``.

    Args:
        data: uint8 bytes.
        lines: int64, shape (lines, 3), start and end in the first two columns.
        count: lines to judge.
        line_bytes_max: see above.
        shapes: uint8, shape (lines,); filled.
    """
    for line in range(count):
        if lines[line, 1] - lines[line, 0] > line_bytes_max:
            shapes[line] = SHAPE_OTHER
        else:
            shapes[line] = _line_shape(data, lines[line, 0], lines[line, 1])
