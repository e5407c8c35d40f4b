"""Paths of manifests, which may come from others, stay below the checkpoint store."""

import pytest

from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import image_from_json


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "files/../../x", "files/..", "..", "", "files/\0", "//host/x"]
)
def test_a_path_that_leads_out_of_the_store_is_refused(path):
    with pytest.raises(CheckpointError, match="not below the checkpoint store"):
        image_from_json({"id": "i", "files": {"1.sst": [path, 1]}})


@pytest.mark.parametrize("path", ["files/000001/a", "files/..a/b..", "a"])
def test_a_path_below_the_store_is_taken(path):
    assert image_from_json({"id": "i", "files": {"1.sst": [path, 1]}}).files["1.sst"].path == path
