"""A secret in any setting shows neither when the setting is refused nor when it is shown."""

import json

import pytest

from weir.config import load_config
from weir.config.keys import all_keys
from weir.errors import ConfigError
from weir.redaction import KNOWN, KnownSecrets, redacted, redacted_text

PLANTED = "pl4nted/S3cret-88"


@pytest.fixture(autouse=True)
def _forgets():
    before = KNOWN._texts
    yield
    KNOWN._texts = before


def shown(dotted, text):
    """What a user sees of a setting."""
    try:
        loaded = load_config(None, {}, {dotted: text})
    except ConfigError as error:
        return str(error)
    return json.dumps(redacted(loaded.config.model_dump(mode="json", by_alias=True))) + str(loaded.warnings)


@pytest.mark.parametrize("dotted", list(all_keys()))
def test_a_planted_secret_does_not_show(dotted):
    for text in (f"s3://user:{PLANTED}@host/x", f"user:{PLANTED}@host:1", f"x?secret_key={PLANTED}"):
        assert PLANTED not in shown(dotted, text)


def test_a_secret_is_hidden_where_nothing_tells_what_it_is():
    known = KnownSecrets()
    known.learn({"api_token": 'a"b-c1234', "uri": f"x://u:{PLANTED}@h", "tokens_path": "data/events"})
    assert (
        known.hidden(f'it was a"b-c1234 and {PLANTED}, not data/events')
        == "it was *** and ***, not data/events"
    )
    answer = json.dumps({"cause": 'a"b-c1234'}).encode()
    assert known.masked(answer) == answer.replace(b'a\\"b-c1234', b"*" * 10)


def test_texts_of_logs_go_the_same_way():
    KNOWN.learn({"password": PLANTED})
    assert PLANTED not in redacted_text(f"refused: {PLANTED}")
