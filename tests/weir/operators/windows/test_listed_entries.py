"""Entries of a pane come back as they were listed, in the order of their last times."""

import numpy as np
import pytest

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.windows.rows.listed_entries import ListedEntries, ListedRows
from weir.state.tables.panes.window_entries import NEVER_MS


def listed(lasts_ms, integers):
    names = [b"k%d" % number * (1 + number % 3) for number in range(len(lasts_ms))]
    presence = np.arange(len(lasts_ms), dtype=np.uint8)[:, None] % 3
    cells = Cells(np.array(integers, dtype=np.int64), presence)
    return ListedRows(np.array(lasts_ms), weir_keys.KeyColumn.from_list(names), cells)


def shown(rows):
    return list(
        zip(
            rows.lasts_ms.tolist(),
            rows.keys.to_list(),
            rows.cells.integers.tolist(),
            rows.cells.presence.tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("gap_ms", [1, 7, 100, 60_000])
def test_each_entry_is_taken_once_when_its_last_time_has_passed(gap_ms):
    random = np.random.default_rng(gap_ms)
    end_ms = 3 * gap_ms
    pane, wanted = ListedEntries(end_ms, gap_ms), []
    for extreme in (1, 300, 70_000, 2**40, 2**63 - 1):
        lasts_ms = random.integers(end_ms - gap_ms, end_ms, 50)
        integers = random.integers(-extreme, extreme, (50, 3))
        integers[:, 0] = 7
        rows = listed(lasts_ms, integers)
        pane.add(rows)
        wanted += shown(rows)
    taken = []
    for gone_ms in [end_ms - gap_ms, *sorted(random.integers(end_ms - gap_ms, end_ms, 9).tolist()), end_ms]:
        taken += [row for rows in pane.take(gone_ms) for row in shown(rows)]
        assert sorted(taken) == sorted(row for row in wanted if row[0] < gone_ms)
        assert pane.first_ms() == min([row[0] for row in wanted if row[0] >= gone_ms], default=NEVER_MS)
    assert [row[0] for row in taken] == sorted(row[0] for row in wanted)
