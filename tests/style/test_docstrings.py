"""The check of docstrings finds what it is for."""

from __future__ import annotations

import pytest

from tests.style.docstrings import unfit


@pytest.mark.parametrize("text", ["As the other one.", "See :class:`X`.", "Of each key.", "It ends."])
def test_a_docstring_that_begins_with_no_noun_and_no_verb_is_found(text):
    assert list(unfit(f'"""Module."""\ndef f():\n    """{text}"""\n')) == [(3, text)]


@pytest.mark.parametrize("text", ["Return the key.", "A key.", "``step``: its name.", ""])
def test_others_are_not(text):
    assert list(unfit(f'def f():\n    """{text}"""\n')) == []
