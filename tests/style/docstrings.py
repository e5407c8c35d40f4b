"""Finds docstrings that do not begin with a noun or a verb: ``python tests/style/docstrings.py``, in ``make check``.

Each folder may have as many as it had when the rule came (``docstrings.toml``), and no more: a new docstring is a
sentence, and whoever mends old ones lowers the number. ``--write`` writes the numbers of today.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
KNOWN = Path(__file__).with_suffix(".toml")
SHIPPED = ("weir", "control_plane", "task_manager", "log_broker")
#: A sentence that begins so has to be read to its end before it says what it is about.
_WORDS = (
    "see as of for by in on at with without from to before after between behind besides until during per "
    "it its they their them this that these those he she one ones each all both none others other"
)
NO_BEGINNINGS = frozenset(_WORDS.split())
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def unfit(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of a module that begins with a preposition, a pronoun or "See"."""
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
        first = re.match(r"[A-Za-z]+", text or "")
        if text and first and first[0].lower() in NO_BEGINNINGS:
            yield node.body[0].lineno, text.partition("\n")[0]


def found(root: Path) -> dict[str, list[str]]:
    """Return by folder each such docstring of what ships, as ``path:line: text``; generated code apart."""
    places: dict[str, list[str]] = {}
    for package in SHIPPED:
        for path in sorted((root / package).rglob("*.py")):
            if "_pb2" not in path.name:
                name = path.relative_to(root)
                lines = [f"{name}:{line}: {text}" for line, text in unfit(path.read_text(encoding="utf-8"))]
                places.setdefault(str(name.parent), []).extend(lines)
    return places


def main(arguments: list[str]) -> int:
    """Compare with the numbers that are known; returns the exit code."""
    places = found(ROOT)
    if arguments == ["--write"]:
        lines = [f'"{folder}" = {len(each)}\n' for folder, each in places.items() if each]
        KNOWN.write_text("".join(lines), encoding="utf-8")
        return 0
    known = Counter(tomllib.loads(KNOWN.read_text(encoding="utf-8")))
    more = {folder: each for folder, each in places.items() if len(each) > known[folder]}
    for folder, each in more.items():
        print(
            f"{folder}: {len(each)} docstrings begin with a preposition, a pronoun or 'See', {known[folder]} did "
            "before; begin new ones with a noun or a verb ('Return ...'):",
            *each,
            sep="\n  ",
            file=sys.stderr,
        )
    if not more:
        print(f"docstrings: {sum(map(len, places.values()))} of before begin otherwise, none is new")
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
