import logging

import pytest

from weir.process.log_lines import ENTRIES_MAX, WINDOW_S, EntryFormatter, FloodFilter
from weir.process.printable import one_entry, printable


def record(message, *args, at_s=0.0, exc_info=None):
    made = logging.LogRecord("weir", logging.ERROR, "x.py", 1, message, args, exc_info)
    made.created = at_s
    return made


def formatted(entry):
    return EntryFormatter("12:00:00 task_manager %(levelname)s %(message)s").format(entry)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with\ttab", "plain, with\ttab"),
        ("\x1b[2J\x1b[31mred", "\\x1b[2J\\x1b[31mred"),
        ("over\rwritten", "over\\rwritten"),
        ("bell\x07 null\x00 csi\x9b1m", "bell\\x07 null\\x00 csi\\x9b1m"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("Grüße, 東京", "Grüße, 東京"),
    ],
)
def test_control_characters_are_written_out(text, shown):
    assert printable(text) == shown


def test_a_message_cannot_forge_a_second_entry():
    text = formatted(record("rejected %s", "a\n12:00:01 control_plane INFO all is well"))
    assert text.splitlines() == [
        "12:00:00 task_manager ERROR rejected a",
        "  12:00:01 control_plane INFO all is well",
    ]


def test_an_exception_cannot_either():
    try:
        raise ValueError("x\n12:00:01 control_plane INFO all is well\x1b[2J")
    except ValueError as error:
        entry = record("failed", exc_info=(type(error), error, error.__traceback__))
    first, *others = formatted(entry).splitlines()
    assert first == "12:00:00 task_manager ERROR failed"
    assert all(line.startswith("  ") for line in others)
    assert "\x1b" not in formatted(entry)


def test_one_entry_is_for_texts_of_one_line_too():
    assert one_entry("a\nb") == "a\n  b"


def test_a_flood_is_counted_and_told_with_the_next_entry():
    flood = FloodFilter()
    written = [flood.filter(record("cannot accept %d", number)) for number in range(ENTRIES_MAX + 50)]
    assert written.count(True) == ENTRIES_MAX
    last = record("cannot accept %d", 7, at_s=WINDOW_S)
    assert flood.filter(last)
    assert last.getMessage() == "cannot accept 7 (and 50 entries like this, left out)"


def test_others_are_written_meanwhile():
    flood = FloodFilter()
    for number in range(ENTRIES_MAX + 50):
        flood.filter(record("cannot accept %d", number))
    assert flood.filter(record("the job has failed"))


def test_handlers_decide_alike():
    flood = FloodFilter()
    entries = [record("x") for _ in range(ENTRIES_MAX + 1)]
    assert [flood.filter(entry) for entry in entries] == [flood.filter(entry) for entry in entries]


def test_kinds_are_bounded():
    flood = FloodFilter()
    for number in range(5_000):
        flood.filter(record(f"kind {number}"))
    assert len(flood._kinds) <= 1_000
