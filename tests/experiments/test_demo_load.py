"""The demo's load goes by what processes get of this machine."""

import pytest

from experiments.demo_load import FreeCores, measure_free_cores


def test_the_load_is_too_much_for_one_process_and_not_for_two():
    free = FreeCores(one=0.5, two=1.0)
    load_ms = free.load_ms(300, 1.02)
    assert load_ms == pytest.approx(1.7)
    assert free.one < 300 * load_ms / 1e3 < free.two
    assert free.second_helps
    assert not FreeCores(one=1.0, two=1.1).second_helps


def test_what_processes_get_is_measured():
    free = measure_free_cores()
    assert 0 < free.one <= 1.1
    assert 0 < free.two <= 2.2
