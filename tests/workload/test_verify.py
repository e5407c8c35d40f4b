import json

import pytest

from weir.errors import InputError
from workload.verify import Verdict, verify

pytestmark = pytest.mark.spark

SERVERS = 3


@pytest.fixture
def run(tmp_path):
    """A right delivery of 30 events in two files; gives its rows and a function that writes them."""
    events = [{"id": number, "server": f"server-{number % SERVERS}"} for number in range(30)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "out").mkdir()
    rows, counts = [], {}
    for event in events:
        odd = event["id"] % 2
        for key in (event["server"], (event["server"], odd)):
            counts[key] = counts.get(key, 0) + 1
        m = counts[(event["server"], odd)]
        rows.append({**event, "n": counts[event["server"]], "odd": odd, "m": m, "highest": event["id"]})

    def write():
        for name, part in (("part-0.jsonl", rows[::2]), ("part-1.jsonl", rows[1::2])):
            (tmp_path / "out" / name).write_text("".join(json.dumps(row) + "\n" for row in part))
        # Not committed, so not delivered.
        (tmp_path / "out" / ".part-2.pending").write_text(json.dumps(rows[0]) + "\n")

    return rows, write


def lose(rows):
    del rows[-1]


def double(rows):
    rows.append(rows[4])


def swap(rows):
    rows[0]["n"], rows[3]["n"] = rows[3]["n"], rows[0]["n"]


def invent(rows):
    rows.append({**rows[-1], "id": 99, "odd": 1, "m": 6, "n": 11})


def miscount(rows):
    rows[-1]["m"] += 1


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (None, {}),
        (lose, {"lost": 1, "rows": 29}),
        (double, {"duplicated": 1, "rows": 31, "miscounted": 5}),
        (swap, {"reordered": 2}),
        (invent, {"invented": 1, "rows": 31}),
        (miscount, {"miscounted": 1}),
    ],
)
def test_every_sort_of_wrong_row_is_counted(spark, tmp_path, run, spoil, wrong):
    rows, write = run
    if spoil is not None:
        spoil(rows)
    write()
    right = {
        "events": 30,
        "rows": 30,
        "lost": 0,
        "duplicated": 0,
        "invented": 0,
        "reordered": 0,
        "miscounted": 0,
    }
    verdict = verify(spark, tmp_path / "events.jsonl", tmp_path / "out")
    assert verdict == Verdict(**(right | wrong))
    assert verdict.is_right is (spoil is None)


def test_an_output_that_is_not_there_is_an_error(spark, tmp_path):
    with pytest.raises(InputError, match="nothing to verify"):
        verify(spark, tmp_path / "events.jsonl", tmp_path / "out")
