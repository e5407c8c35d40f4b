"""These tests try the JSON scanner itself, and not the parser that stands in until it is compiled."""

import pytest

from weir.kernels.declare import load_kernel, name_of
from weir.operators.sources.json.json_scan import scan_lines


@pytest.fixture(scope="session", autouse=True)
def _scanner():
    load_kernel(name_of(scan_lines))
