from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

from weir.operators.stateless.busy import BusyOperator, CpuBurner
from weir.specs import BusySpec

BATCH = pa.record_batch({"n": pa.array(range(50))})


def test_no_load_forwards_the_batch_itself():
    assert list(BusyOperator(BusySpec(0.0)).process(BATCH)) == [BATCH]


@pytest.mark.parametrize(("load_ms", "pieces"), [(2.0, 50), (0.25, 13), (0.01, 1)])
def test_rows_leave_in_small_pieces_in_order(load_ms, pieces):
    out = list(BusyOperator(BusySpec(load_ms)).process(BATCH))
    assert len(out) == pieces
    assert pa.Table.from_batches(out).column("n").to_pylist() == list(range(50))


def test_first_row_does_not_wait_for_the_last():
    before = time.thread_time()
    next(iter(BusyOperator(BusySpec(5.0)).process(BATCH)))
    assert time.thread_time() - before < 0.1


@pytest.mark.parametrize("load_ms", [0.05, 1.0])
def test_cpu_time_used_is_what_was_asked_for(load_ms):
    def used_ms():
        burner, rounds = CpuBurner(), int(100 / load_ms)
        before = time.thread_time()
        for _ in range(rounds):
            burner.burn_ms(load_ms)
        return (time.thread_time() - before) * 1000

    # On a full machine the calls themselves may take a tenth, but not each time.
    tried_ms = [used_ms()]
    while tried_ms[-1] != pytest.approx(100, rel=0.1) and len(tried_ms) < 10:
        tried_ms.append(used_ms())
    assert tried_ms[-1] == pytest.approx(100, rel=0.1), tried_ms


def test_other_python_threads_run_meanwhile():
    """With the GIL held, the main thread could not count before the burning ends."""
    finished = threading.Event()

    def burn():
        CpuBurner().burn_ms(300)
        finished.set()

    thread = threading.Thread(target=burn)
    thread.start()
    counted = 0
    while not finished.is_set():
        counted += 1
        time.sleep(0.001)
    thread.join()
    assert counted > 20
