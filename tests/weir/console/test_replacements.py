"""How often a process of ``weir run`` is started again."""

from weir.console.replacements import IDLE_MAX, REPLACEMENTS_MAX, Replacements


def test_so_many_in_a_run_and_few_that_never_work():
    often = Replacements()
    assert [often.take(had_worked=True) for _ in range(REPLACEMENTS_MAX)] == [""] * REPLACEMENTS_MAX
    assert often.take(had_worked=True) == "as 10 before it; giving up"
    in_a_row = Replacements()
    assert in_a_row.take(had_worked=True) == ""
    assert [in_a_row.take(had_worked=False) for _ in range(IDLE_MAX)] == [""] * IDLE_MAX
    assert in_a_row.take(had_worked=False) == "as 3 before it, before it came to work; giving up"


def test_work_in_between_counts():
    turns = Replacements()
    assert not any(turns.take(had_worked=number % 3 == 0) for number in range(REPLACEMENTS_MAX))
