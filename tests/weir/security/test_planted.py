"""A secret in any setting shows neither when the setting is refused nor when it is shown."""

import json

import pytest

from weir.config import load_config
from weir.config.keys import all_keys
from weir.errors import ConfigError
from weir.process.entry_point import parameter_texts
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


@pytest.mark.parametrize(
    ("document", "variables", "flags"),
    [
        ({"taskManager": {"cassandra": {"pasword": "hunter2"}}}, {}, {}),
        ({"taskManager": {"cassandra": {"username": "u", "password": 80552}}}, {}, {}),
        ({}, {"WEIR_TASKMANAGER_CASSANDRA_PASWORD": "hunter2"}, {}),
        ({}, {"WEIR_DB_TOKEN": "hunter2"}, {}),
        ({}, {}, {"taskManager.cassandra.passwort": "hunter2"}),
        ({}, {}, {"taskManager.api_key": "hunter2"}),
    ],
)
def test_a_secret_whose_key_or_kind_is_wrong_does_not_show(tmp_path, document, variables, flags):
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "config.json", variables, flags)
    assert " = ***: " in str(refused.value)
    assert not any(text in str(refused.value) for text in ("hunter2", "80552"))


def test_other_values_that_are_refused_show(tmp_path):
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"WEIR_TASKMANAGER_CASSANDRA_PORTS": "77"}, {"taskManager.batch_sise": "78"})
    assert "77" in str(refused.value)
    assert "78" in str(refused.value)


def test_variables_of_clients_and_hooks_are_no_settings():
    """A hook of the autoscaler starts task managers with what it is told; users have a token for ``weir status``."""
    others = ("WEIR_TOKEN", "WEIR_JOB_ID", "WEIR_SLOTS_MISSING", "WEIR_REASON")
    assert load_config(None, dict.fromkeys(others, "x"), {}).config == load_config(None, {}, {}).config


def test_a_parameter_that_is_given_twice_tells_no_secret():
    with pytest.raises(ConfigError, match="db_password is given twice") as refused:
        parameter_texts(["db_password=hunter2", "db_password=hunter3"])
    assert "hunter" not in str(refused.value)


def test_long_words_and_numbers_are_secrets_short_ones_may_mean_something_else():
    known = KnownSecrets()
    known.learn({"password": "correcthorsebattery", "token": "1234567890123456", "secret": "localhost"})
    assert known.hidden("correcthorsebattery 1234567890123456 localhost") == "*** *** localhost"


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
