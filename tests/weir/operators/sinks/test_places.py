"""Where files of another place are, of which only the location is known."""

import pytest

from weir.operators.sinks.places import uri_beside


@pytest.mark.parametrize(
    ("own", "location", "wanted"),
    [
        ("checkpoints/b", "checkpoints/a", "checkpoints/a"),
        ("s3://key:secret@new/b?region=x", "s3://old/a", "s3://key:secret@old/a?region=x"),
        ("s3://new/b?region=x", "s3://old/a", "s3://old/a?region=x"),
        ("gs://new/b?x=1", "s3://old/a", "s3://old/a"),
        ("s3://new/b", "/data/a", "/data/a"),
    ],
)
def test_another_place_has_the_settings_of_ours(own, location, wanted):
    assert uri_beside(own, location) == wanted
