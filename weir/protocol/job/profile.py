"""What a stage does with its time, from stacks that were seen: in words, and as boxes of a flame graph. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

#: Boxes that are drawn, and the smallest part of all samples that one has.
BOXES_MAX, SHARE_MIN = 600, 0.002
#: Lines of words, and the smallest part that is worth one.
WORDS_MAX, WORDS_SHARE_MIN = 5, 0.02


class FrameKind(IntEnum):
    """Whose code a frame runs."""

    ENGINE = 0
    #: Of the job's author.
    JOB = 1
    #: Of Python or of a package.
    LIBRARY = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """A function in which a thread was, and where in it."""

    function: str
    #: As people find it again: the end of its path.
    file: str
    line: int
    kind: FrameKind


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames in which a thread was seen, the outermost first."""

    frames: tuple[Frame, ...]
    #: How often.
    samples: int
    #: The step whose operator ran; empty: none did, as rows are sent or received.
    step: str = ""
    #: The thread waited, for rows or for room after it.
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a flame graph: ``depth`` 0 is the lowest; ``start`` and ``width`` are in samples."""

    depth: int
    start: int
    width: int
    name: str
    #: Where it is, in words.
    place: str
    #: ENGINE, JOB, LIBRARY, STEP or WAITS.
    kind: str


@dataclass
class _Node:
    name: str
    kind: str
    width: int = 0
    lines: Counter[int] = field(default_factory=Counter)
    file: str = ""
    children: dict[tuple[str, str], _Node] = field(default_factory=dict)

    def child(self, name: str, kind: str, file: str = "") -> _Node:
        return self.children.setdefault((name, file), _Node(name, kind, file=file))


def samples_of(stacks: Iterable[Stack]) -> int:
    """Return the number of all samples."""
    return sum(stack.samples for stack in stacks)


def words(stacks: Sequence[Stack]) -> list[str]:
    """Where the time goes, the largest part first: ``71 % in `score` of step `score`, line 12 of jobs/hot.py``.

    A part is a function of the job's author in a step; where no such one runs, what the engine called last.
    """
    total = samples_of(stacks)
    parts: Counter[tuple[str, str, str]] = Counter()
    lines: dict[tuple[str, str, str], Counter[int]] = {}
    waiting = 0
    for stack in stacks:
        if stack.waits or not stack.frames:
            waiting += stack.samples
            continue
        frame = telling_frame(stack.frames)
        part = (stack.step, frame.function, frame.file)
        parts[part] += stack.samples
        lines.setdefault(part, Counter())[frame.line] += stack.samples
    told = [
        (count, _told(part, lines[part], count / total))
        for part, count in parts.items()
        if count >= total * WORDS_SHARE_MIN
    ]
    if waiting and waiting >= total * WORDS_SHARE_MIN:
        told.append(
            (waiting, f"{_percent(waiting / total)} waits for rows, or for room in the stages after it")
        )
    # Stable: what is as large stays in the order in which it was seen.
    told.sort(key=lambda item: -item[0])
    return [text for _, text in told[:WORDS_MAX]]


def telling_frame(frames: Sequence[Frame]) -> Frame:
    """The frame that says most to the job's author: the innermost one of the job's own code.

    Without any: the first that the engine called outside of itself, as a function of polars; else the innermost.
    """
    for frame in reversed(frames):
        if frame.kind is FrameKind.JOB:
            return frame
    called = frames[-1]
    for frame in reversed(frames):
        if frame.kind is FrameKind.ENGINE:
            break
        called = frame
    return called


def boxes(stacks: Sequence[Stack], root: str) -> list[Box]:
    """The flame graph: by step, then by function; wide boxes first within their parent; small ones are left out.

    Args:
        stacks: what was seen.
        root: name of the lowest box, which all samples are in.
    """
    tree = _Node(root, "STEP")
    for stack in stacks:
        tree.width += stack.samples
        if stack.waits or not stack.frames:
            tree.child("waits for rows or room", "WAITS").width += stack.samples
            continue
        node = tree.child(f"step {stack.step}" if stack.step else "between steps", "STEP")
        node.width += stack.samples
        for frame in stack.frames:
            node = node.child(frame.function, frame.kind.name, frame.file)
            node.width += stack.samples
            node.lines[frame.line] += stack.samples
    found: list[Box] = []
    _place(tree, tree.width, found)
    return found


def _place(tree: _Node, total: int, found: list[Box]) -> None:
    """Boxes level by level, so that the lowest ones are there if there are too many."""
    level = [(tree, 0)]
    depth = 0
    while level and len(found) < BOXES_MAX:
        above: list[tuple[_Node, int]] = []
        for node, start in level:
            if node.width < total * SHARE_MIN or len(found) >= BOXES_MAX:
                continue
            found.append(Box(depth, start, node.width, node.name, _place_of(node), node.kind))
            for child in sorted(node.children.values(), key=lambda each: -each.width):
                above.append((child, start))
                start += child.width
        level, depth = above, depth + 1


def _place_of(node: _Node) -> str:
    if not node.file:
        return ""
    line, _ = node.lines.most_common(1)[0]
    return f"line {line} of {node.file}"


def _told(part: tuple[str, str, str], lines: Mapping[int, int], share: float) -> str:
    step, function, file = part
    line = max(lines, key=lambda each: lines[each])
    most = "" if len(lines) == 1 else "most of it in "
    of = f" of step `{step}`" if step else " between steps"
    return f"{_percent(share)} in `{function}`{of}, {most}line {line} of {file}"


def _percent(share: float) -> str:
    return f"{round(share * 100)} %"
