from collections.abc import Iterator

import pytest

from tests.weir.state.placement.worlds import World, a_world


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as world:
        yield world
