"""Whether the subtasks of a source divide the same input. Pure: what they report in, a message out.

Each subtask of a source lists files or splits by itself, and takes its share. If files came, went or grew between two
of these looks, the shares do not go together: some of the input would be read twice, and some by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping


def differing_plans(source: str, plans: Mapping[int, int]) -> str:
    """What is wrong where subtasks do not divide the same input; "": nothing is.

    Args:
        source: its step.
        plans: by subtask index the number of what it has divided (``SourceReader.input_plan``), 0: nothing.
    """
    known = {index: plan for index, plan in sorted(plans.items()) if plan}
    if len(set(known.values())) < 2:
        return ""
    first, plan = next(iter(known.items()))
    other = next(index for index, found in known.items() if found != plan)
    return (
        f"source {source!r}: its subtasks {first} and {other} have not found the same input: files or splits came, "
        "went or changed while the job started, or are listed in no fixed order, so some would be read twice or not at "
        "all; start the job when they are complete, read them with parallelism=1, or as they come (follow=True, "
        "discover_ms)"
    )
