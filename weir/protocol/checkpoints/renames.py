"""Which names of a checkpoint stand for which names of the job, by what the job says with ``renamed_from=``. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weir.errors import CheckpointError


def names_now(what: str, renames: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Names now by names then, of what has another name now.

    ``renamed_from=`` may stay in a job: where the checkpoint has the new name already, and nothing else takes that one
    away, it says nothing.

    Args:
        what: has these names, in the plural: "steps".
        renames: names then by names now.
        known: names that the checkpoint has.

    Raises:
        CheckpointError: two names now stand for one then, or names have changed places.
    """
    waiting = {now: then for now, then in renames.items() if then in known and then != now}
    taken: dict[str, str] = {}
    while free := [now for now in waiting if now not in known or now in taken]:
        for now in free:
            then = waiting.pop(now)
            if then in taken:
                raise CheckpointError(
                    f"{what} {taken[then]!r} and {now!r} are both renamed_from {then!r}: only one can be"
                )
            taken[then] = now
    for now in waiting:
        circle = [now]
        while (following := waiting.get(circle[-1])) is not None and following not in circle:
            circle.append(following)
        if following == now:
            raise CheckpointError(
                f"{what} {' and '.join(map(repr, circle))} have changed names among themselves by renamed_from, and "
                "the checkpoint has all of these: give one of them a name that it has not got, or take renamed_from "
                "out if the checkpoint is of the job as it is now"
            )
    return taken
