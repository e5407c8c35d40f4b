"""Savepoints over HTTP stay below the configured roots."""

import pytest

from control_plane.checkpoints.savepoint_paths import SavepointPathError, savepoint_uri
from weir.config import ControlPlaneConfig


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(path, roots):
    with pytest.raises(SavepointPathError, match=r"controlPlane\.savepoint_roots") as caught:
        savepoint_uri(path, roots)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_default_takes_what_the_documentation_asks_for(here):
    roots = ControlPlaneConfig().savepoint_roots
    assert savepoint_uri("savepoints/monday", roots) == str(here / "savepoints" / "monday")
    assert savepoint_uri("./savepoints//a/b", roots) == str(here / "savepoints" / "a" / "b")
    assert savepoint_uri(str(here / "savepoints" / "x"), roots) == str(here / "savepoints" / "x")
    assert savepoint_uri(f"file://{here}/savepoints/x", roots) == str(here / "savepoints" / "x")


@pytest.mark.parametrize(
    "path",
    ["", ".", "/", "savepoints", "savepoints/", "savepoints/.", "savepoints/../x", "savepoints/../savepoints/x",
     "savepoints/a/../../../etc", "savepointsx/a", "other/a", "/etc/cron.d/x", "/backup/monday", "file:///etc/x",
     "s3://bucket/savepoints/x", "sav\tepoints/x", "fi\tle:///etc/x", "savepoints/\0", "savepoints/a\nb",
     "~/savepoints/x", "hdfs://host/savepoints/x", "savepoints:x/y", "file://host/etc/x", "http://evil.example/savepoints/x"],
)  # fmt: skip
def test_other_places_are_refused(here, path):
    refused(path, ["savepoints"])


def test_a_link_may_not_lead_out(here):
    (here / "savepoints").mkdir()
    (here / "elsewhere").mkdir()
    (here / "savepoints" / "out").symlink_to(here / "elsewhere")
    (here / "savepoints" / "circle").symlink_to("circle")
    (here / "savepoints" / "in").symlink_to("inside")
    refused("savepoints/out", ["savepoints"])
    refused("savepoints/out/deeper", ["savepoints"])
    refused("savepoints/circle/x", ["savepoints"])
    assert savepoint_uri("savepoints/in/x", ["savepoints"]) == str(here / "savepoints" / "inside" / "x")
    # The root itself may be one: the user chose it.
    (here / "root").symlink_to(here / "elsewhere")
    assert savepoint_uri("root/x", ["root"]) == str(here / "elsewhere" / "x")


ROOT = "s3://key:s3cr3t@bucket/save?region=eu&endpoint_override=minio:9000"


def test_a_uri_gets_the_credentials_and_options_of_its_root():
    for path in (
        "s3://bucket/save/x",
        "s3://key:s3cr3t@bucket/save/x?region=eu&endpoint_override=minio:9000",
    ):
        found = savepoint_uri(path, ["savepoints", ROOT])
        assert found == "s3://key:s3cr3t@bucket/save/x?region=eu&endpoint_override=minio:9000"
    assert savepoint_uri("s3://bucket/a/b", ["s3://bucket"]) == "s3://bucket/a/b"


@pytest.mark.parametrize(
    "path",
    ["s3://bucket/save", "s3://bucket/save/", "s3://bucket/saved/x", "s3://bucket/save/../x",
     "s3://bucket/save/%2e%2e/x",
     "s3://bucket/save/a%2f..%2fb", "s3://bucket/save//x", "s3://other/save/x", "gs://bucket/save/x", "save/x",
     "/save/x",
     "s3://bucket/save/x?endpoint_override=evil:80", "s3://other:pass@bucket/save/x", "s3://bucket@evil/save/x",
     "s3://bucket/save/x#y", "s3://[bucket/save/x"],
)  # fmt: skip
def test_other_uris_are_refused(path):
    assert "s3cr3t" not in refused(path, [ROOT])


def test_without_roots_none_can_be_made():
    refused("savepoints/x", [])
