"""Sources that are far apart: with an alignment what waits for the slower one stays little."""

from functools import partial

import pytest

import weir
from weir.testing import ManualClock, run

ROWS = 2_000
STEP_MS = 100


class Far(weir.Source):
    """Event times far ahead of those of the other source, all at once."""

    def __init__(self, progress, batch):
        self._progress, self._batch = progress, batch

    def read(self, split, position):
        for at in range(position or 0, ROWS, self._batch):
            rows = [{"k": n, "at": n * STEP_MS} for n in range(at, at + self._batch)]
            self._progress[self._batch] = rows[-1]["at"]
            yield rows, at + self._batch


def joined(alignment, progress, *, idle_timeout=None):
    """Rows of a source that gives 100 at a time with those of one that gives 5."""
    flow = weir.Dataflow("aligned")
    watermark = weir.bounded_out_of_orderness("0s", alignment=alignment, idle_timeout=idle_timeout)
    far, near = (
        flow.source(
            name,
            weir.UserSource(partial(Far, progress, batch), schema={"k": int, "at": int}),
            event_time="at",
            watermark=watermark,
        )
        for name, batch in (("far", 100), ("near", 5))
    )
    pairs = far.key_by("k").join("pairs", near.key_by("k"), within=("-1s", "1s"))
    pairs.apply("watch", partial(Watch, progress)).sink("out", weir.Collect())
    return flow


class Watch(weir.Operator):
    """Notes how far the sources are apart."""

    def __init__(self, progress):
        self._progress = progress

    def process(self, batch):
        apart = self._progress[100] - self._progress[5]
        self._progress["apart"] = max(self._progress.get("apart", 0), apart)
        yield batch


@pytest.mark.parametrize("is_aligned", [True, False])
def test_the_source_that_is_ahead_waits_so_that_state_is_bounded(is_aligned):
    progress = {}
    alignment = weir.watermark_alignment("20s") if is_aligned else None
    result = weir.run(joined(alignment, progress))
    assert len(result["out"]) == ROWS, "every row has its partner, none is lost or late"
    # 20 s and one batch of 10 s are 300 rows; without it all 2,000 of one side wait for the other.
    assert (progress["apart"] <= 30_000 + STEP_MS) is is_aligned


def test_groups_do_not_wait_for_each_other_and_idle_sources_are_not_waited_for():
    flow = weir.Dataflow("idle")
    watermark = weir.bounded_out_of_orderness(
        "0s", alignment=weir.watermark_alignment("1s", group="these"), idle_timeout="1s"
    )
    schema = {"k": int, "at": int}

    class Silent(weir.Source):
        def read(self, split, position):
            for _ in range(50):
                yield None

    busy = flow.source(
        "busy", weir.UserSource(partial(Far, {}, 100), schema=schema), event_time="at", watermark=watermark
    )
    silent = flow.source(
        "silent", weir.UserSource(Silent, schema=schema), event_time="at", watermark=watermark
    )
    busy.rebalance().union("both", silent.rebalance()).sink("out", weir.Collect())
    clock = ManualClock()
    assert len(run(flow, clock=clock)["out"]) == ROWS


def test_an_alignment_is_checked_when_the_job_is_built():
    with pytest.raises(weir.GraphError, match="max_drift: 'soon'"):
        weir.watermark_alignment("soon")
    with pytest.raises(weir.GraphError, match="group is ''"):
        weir.watermark_alignment("1s", group="")
    with pytest.raises(weir.GraphError, match=r"alignment is '1s'; write alignment=weir\.watermark_al"):
        weir.bounded_out_of_orderness("1s", alignment="1s")


def test_a_strategy_without_alignment_keeps_its_fingerprint():
    flow = joined(None, {})
    spec = flow.build().nodes[0].spec.describe()
    assert "alignment" not in spec["watermark"]
