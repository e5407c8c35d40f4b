import json
from dataclasses import replace

import pytest

from weir.errors import InputError
from workload.verify import Verdict, verify

pytestmark = pytest.mark.spark

#: Each with ten events, of both parities.
SERVERS = 5
SORTS = ("lost", "duplicated", "invented", "reordered", "miscounted")


def delivered():
    """By server, the rows of a right delivery."""
    rows, counts = {f"server-{number}": [] for number in range(SERVERS)}, {}
    for number in range(10 * SERVERS):
        server, odd = f"server-{number % SERVERS}", number % 2
        for key in (server, (server, odd)):
            counts[key] = counts.get(key, 0) + 1
        of_both = {"n": counts[server], "odd": odd, "m": counts[server, odd]}
        rows[server].append({"id": number, "server": server, **of_both, "highest": number})
    return rows


def write(directory, rows):
    """Deliver rows in two files."""
    lines = [json.dumps(row) + "\n" for some in rows.values() for row in some]
    directory.mkdir()
    for name, part in (("part-0.jsonl", lines[::2]), ("part-1.jsonl", lines[1::2])):
        (directory / name).write_text("".join(part))
    # Not committed, so not delivered.
    (directory / ".part-2.pending").write_text(lines[0])


def test_every_sort_of_wrong_row_is_counted(spark, tmp_path):
    rows = delivered()
    events = [{"id": row["id"], "server": row["server"]} for some in rows.values() for row in some]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    write(tmp_path / "right", rows)
    none = dict.fromkeys(SORTS, 0)
    verdict = verify(spark, tmp_path / "events.jsonl", tmp_path / "right")
    assert verdict == Verdict(events=50, rows=50, **none)
    assert verdict.is_right
    for sort in SORTS:
        assert not replace(verdict, **{sort: 1}).is_right

    # Of each server otherwise, and each as often as no other one.
    lose, double, invent, swap, miscount = rows.values()
    del lose[-5:]
    double.append(double[0])
    last = {name: invent[-1][name] for name in ("server", "highest")}
    invent += [
        {**last, "id": 99 + 2 * number, "odd": 1, "m": 6 + number, "n": 11 + number} for number in range(3)
    ]
    swap[0]["n"], swap[3]["n"] = swap[3]["n"], swap[0]["n"]
    miscount[-1]["m"] += 1
    write(tmp_path / "wrong", rows)
    wrong = {"lost": 5, "duplicated": 1, "invented": 3, "reordered": 2}
    # All that come after the row that is there twice, it itself, and the one with another count.
    wrong["miscounted"] = 5 + 1
    assert verify(spark, tmp_path / "events.jsonl", tmp_path / "wrong") == Verdict(
        events=50, rows=49, **wrong
    )


def test_an_output_that_is_not_there_is_an_error(spark, tmp_path):
    with pytest.raises(InputError, match="nothing to verify"):
        verify(spark, tmp_path / "events.jsonl", tmp_path / "out")
