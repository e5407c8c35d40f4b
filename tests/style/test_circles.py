"""The check of circles finds one that only an import for types closes."""

from __future__ import annotations

from tests.style.circles import circle


def test_a_circle_by_an_import_for_types_or_in_a_function_is_found(tmp_path, monkeypatch):
    package = tmp_path / "circular_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "upper.py").write_text("from circular_package import lower\n")
    lower = package / "lower.py"
    lower.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert circle(("circular_package",)) == []
    names = {"circular_package.upper", "circular_package.lower"}
    lower.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circular_package import upper\n"
    )
    assert set(circle(("circular_package",))) == names
    lower.write_text("def call():\n    from circular_package import upper\n")
    assert set(circle(("circular_package",))) == names
