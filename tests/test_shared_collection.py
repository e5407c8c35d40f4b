"""Workers import test files in orders of their own, and agree on the order of the tests."""

import sys

from tests.shared_collection import SharedCollection

pytest_plugins = "pytester"

FILE = """
import sys
sys.shared_collection_order.append(__name__)
def test_second(): pass
def test_first(): pass
"""


class Collected:
    """A plugin that keeps the tests as they are handed in, after all other plugins."""

    def pytest_collection_finish(self, session):
        """They stand in their order."""
        self.tests = [item.nodeid for item in session.items]


def test_files_are_imported_in_an_order_of_the_worker_and_tests_stand_in_that_of_pytest(
    pytester, monkeypatch
):
    for name in ("b/test_b", "b/c/test_c", "a/test_a", "test_d", "b/test_e", "b/test_f"):
        file = pytester.path / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FILE)

    def collect(*plugins):
        monkeypatch.setattr(sys, "shared_collection_order", imported := [], raising=False)
        collected = Collected()
        pytester.inline_run(
            "--collect-only", "--import-mode=importlib", "-p", "no:xdist", plugins=[collected, *plugins]
        )
        return imported, collected.tests

    imported, tests = collect()
    assert len(tests) == 2 * len(imported) == 12
    orders = [collect(SharedCollection(f"gw{worker}")) for worker in range(3)]
    assert [handed_in for _, handed_in in orders] == [tests] * 3
    assert len({tuple(order) for order, _ in orders}) == 3
    assert all(sorted(order) == sorted(imported) for order, _ in orders)
