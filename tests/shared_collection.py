"""Workers of pytest-xdist import the test files in orders of their own, and hand in the tests in the usual one.

Each of them imports all test files. In a new clone, and after an upgrade of pytest, a file's first import rewrites its
assertions and keeps the outcome beside it, which takes three times as long as all that follows. Workers that took the
same order would do this side by side for the same files.
"""

import random

import pytest


class SharedCollection:
    """A plugin of pytest in one worker."""

    def __init__(self, worker):
        self._random = random.Random(worker)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        """A directory's files and directories come in an order of this worker's."""
        report = yield
        if isinstance(collector, pytest.Directory) and report.result:
            self._random.shuffle(report.result)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        """Sorted by file, as pytest does it: all workers have to hand in the same tests in the same order."""
        items.sort(key=lambda item: item.path.relative_to(config.rootpath).parts)
