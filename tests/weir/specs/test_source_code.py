"""The source of code that fingerprints have digests of."""

import inspect

import pytest

from weir.specs.source_code import source_of


class Mine:
    def process(self, key, row, context):
        yield row


def test_a_class_is_looked_for_in_its_file_once(monkeypatch):
    asked = []
    real = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda target: asked.append(target) or real(target))

    class Other(Mine):
        pass

    for _ in range(2):
        assert source_of(Mine) == real(Mine)
        assert source_of(Other) == real(Other) != real(Mine)
        assert source_of(Mine.process) == real(Mine.process)
    assert asked.count(Mine) == asked.count(Other) == 1


def test_what_has_no_source_says_so():
    with pytest.raises(TypeError):
        source_of(int)
