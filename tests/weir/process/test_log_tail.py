import logging

import pytest

from weir.process.log_lines import EntryFormatter
from weir.process.log_tail import AUDIT_LOGGER, CHARACTERS_MAX, ENTRIES_MAX, LogTail


@pytest.fixture
def logged():
    """A tail, and the logger that it hears."""
    tail, log = LogTail(), logging.Logger("x")
    tail.setFormatter(EntryFormatter("12:00:00 task_manager %(levelname)s %(message)s"))
    log.addHandler(tail)
    return tail, log


def test_it_has_the_last_entries_oldest_first(logged):
    tail, log = logged
    for number in range(ENTRIES_MAX + 7):
        log.info("entry %d", number)
    entries = tail.last(10_000)
    assert len(entries) == ENTRIES_MAX
    assert entries[0].text.endswith("entry 7")
    assert tail.last(2) == entries[-2:]
    assert tail.last(0) == []


def test_an_entry_is_quoted_redacted_and_bounded(logged):
    tail, log = logged
    log.error("at s3://me:hunter2@bucket/in\n12:00:01 control_plane INFO all is well\x1b[2J")
    log.info("x" * 10 * CHARACTERS_MAX)
    first, second = (entry.text for entry in tail.last(2))
    assert first == (
        "12:00:00 task_manager ERROR at s3://***@bucket/in\n  12:00:01 control_plane INFO all is well\\x1b[2J"
    )
    assert len(second) <= CHARACTERS_MAX + 4
    assert second.endswith(" ...")


def test_an_entry_that_cannot_be_written_ends_nothing(logged, capsys):
    tail, log = logged
    log.info("%d", "no number")
    log.info("next")
    assert tail.last(5)[-1].text.endswith("next")
    assert "no number" in capsys.readouterr().err


def test_it_knows_which_entries_tell_who_did_what(logged):
    tail, log = logged
    audit = logging.Logger(AUDIT_LOGGER)
    audit.addHandler(tail)
    log.info("the job runs")
    audit.info("token operate at 10.1.2.3:4567: POST /cancel: 202")
    assert [entry.is_audit for entry in tail.last(2)] == [False, True]
