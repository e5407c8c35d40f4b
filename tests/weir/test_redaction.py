"""Credentials leave no trace where settings are written."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weir.config import Config, load_config
from weir.dataflow.loading import LoadedJob
from weir.errors import ConfigError, HandshakeError
from weir.redaction import KnownSecrets, redacted, redacted_text
from weir.rpc.wire import parse_address

SECRETS = ["AKIA123", "s3cr3t", "t0ken", "pa55"]
URIS = [
    "s3://AKIA123:s3cr3t@bucket/path?region=eu",
    "s3://AKIA123:s3/cr3t/s3cr3t@bucket/path?region=eu",
    "s3://bucket/path?access_key=AKIA123&secret_key=s3cr3t&session_token=t0ken&region=eu",
    "s3://bucket/path?region=eu&SECRET_KEY=s3cr3t%2F#x",
    "https://user:pa55@minio.example:9000/path?X-Amz-Signature=s3cr3t",
    "http://root:pa55@etcd.example:2379",
    "root:pa55@etcd.example:2379",
    "postgresql://u:pa55@db.example/path",
    "host=db.example password=pa55 dbname=path",
    "host=db.example password='pa55 s3cr3t' dbname=path",
    "cannot reach http://root:pa55@a:1, root:pa55@b:2",
]


@pytest.mark.parametrize("uri", URIS)
def test_credentials_are_hidden_and_the_rest_stays(uri):
    shown = redacted_text(uri)
    assert not [secret for secret in SECRETS if secret in shown]
    assert "***" in shown
    for part in (
        "bucket",
        "region=eu",
        "minio.example:9000",
        "etcd.example:2379",
        "db.example",
        "dbname=path",
    ):
        assert (part in shown) == (part in uri), shown


@pytest.mark.parametrize(
    "text",
    ["", "checkpoints", "/data/check@points", "s3://bucket/path?region=eu-central-1&scheme=https", "127.0.0.1:8018",
     "http://a:2379", "me@example.com", "a=b", "http://[::1]:80/x", "gs://bucket/a/b", "12:30:00 a@b"],
)  # fmt: skip
def test_other_texts_stay(text):
    assert redacted_text(text) == text


def test_a_long_text_takes_no_longer_than_its_length_asks_for():
    """From 100,000 places it would take a quarter of an hour."""
    text = "9" * 100_000
    assert redacted_text(text) == text
    assert redacted_text(f"{text}_token={text}") == f"{text}_token=***"


def test_names_of_secrets_hide_their_values():
    value = {
        "db_password": "pa55",
        "secrets": ["s3cr3t", {"a": "t0ken"}],
        "token_count": 3,
        "api_key": "",
        "rate": 1.5,
    }
    assert redacted({"parameters": value}) == {
        "parameters": {
            "db_password": "***",
            "secrets": ["***", {"a": "***"}],
            "token_count": 3,
            "api_key": "",
            "rate": 1.5,
        }
    }


def test_settings_without_credentials_stay_as_they_are():
    dumped = Config().model_dump(mode="json", by_alias=True)
    assert redacted(dumped) == dumped


def test_the_settings_in_force_are_printed_without_credentials(tmp_path):
    path = tmp_path / "config.json"
    section = {"checkpoint_uri": URIS[2], "etcd_endpoints": [URIS[5]]}
    path.write_text(json.dumps({"controlPlane": section}))
    command = [sys.executable, "-m", "weir.config", "--config", path]
    root = Path(__file__).parents[2]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    assert not [secret for secret in SECRETS if secret in printed]
    assert "etcd.example" in printed


def test_a_refused_setting_is_shown_without_credentials(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"controlPlane": {"checkpoint_url": URIS[0]}}))
    with pytest.raises(ConfigError, match="checkpoint_uri") as caught:
        load_config(path)
    assert "s3cr3t" not in str(caught.value)
    with pytest.raises(HandshakeError, match=r"etcd\.example") as refused:
        parse_address(URIS[6])
    assert "pa55" not in str(refused.value)


def test_the_line_about_parameters_has_no_credentials():
    job = LoadedJob(None, {"database": URIS[7], "rate": 5}, {"database": "--param", "rate": "--param"})
    assert job.describe_parameters() == "from --param: database='postgresql://***@db.example/path', rate=5"


@pytest.mark.parametrize("unit", ["://:", "://", "a:b=", "a:b:", "=a:b", "token", "secret ", "u:p@"])
def test_a_long_text_of_a_peer_takes_no_time(unit):
    """Requests may have 60,000 characters, and were written to the log by the event loop, in half a minute."""
    text = unit * (60_000 // len(unit))
    began_s = time.process_time()
    redacted_text(text)
    KnownSecrets().learn(text)
    assert time.process_time() - began_s < 1
