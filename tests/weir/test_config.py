"""config.json: defaults, overrides, and the exact words of every refusal."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from weir.config import Config, StateMove, StateStrategy, TaskManagerConfig, load_config, parse_set_flags
from weir.config.keys import WITHOUT_EFFECT, all_keys, environment_name, section_models
from weir.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def write(tmp_path, document, name="config.json"):
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def refusal(*arguments):
    with pytest.raises(ConfigError) as caught:
        load_config(*arguments)
    return str(caught.value)


@pytest.fixture
def in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_committed_file_is_complete_and_equal_to_the_models():
    committed = json.loads((ROOT / "config.json").read_text())
    assert committed == Config().model_dump(mode="json", by_alias=True)
    assert list(committed["taskManager"]) == list(Config().model_dump(by_alias=True)["taskManager"])


def test_the_committed_file_loads_without_a_warning():
    loaded = load_config(ROOT / "config.json")
    assert (loaded.config, loaded.warnings) == (Config(), [])


def test_the_keys_of_the_system_before_keep_their_names():
    control = "cp_grpc_port control_port watermark_interval out_of_order_grace_period scale_up_portion"
    control += " consistent_control_grace_period etcd_endpoints test_etcd_conn"
    task = "cp_host cp_port tm_port operator_quota operator_bufferSize useHybrid useMigrate useCache"
    task += " rocksDBPath batch_size batch_timeout_ms"
    prometheus = "enabled prometheus_host prometheus_port pushgateway_host pushgateway_port job_name"
    wanted = {f"controlPlane.{k}" for k in control.split()} | {f"taskManager.{k}" for k in task.split()}
    wanted |= {f"prometheus.{k}" for k in prometheus.split()} | {"fileName"}
    assert wanted <= set(all_keys()) | WITHOUT_EFFECT


def test_keys_that_never_did_anything_are_accepted_with_a_warning(tmp_path):
    path = write(tmp_path, {"controlPlane": {"consistent_control_grace_period": "x"}})
    environment = {"WEIR_CONTROLPLANE_CONSISTENT_CONTROL_GRACE_PERIOD": "0.25"}
    loaded = load_config(path, environment, {"controlPlane.consistent_control_grace_period": "1"})
    assert loaded.config == Config()
    assert [line.partition(": ")[0] for line in loaded.warnings] == [
        str(path),
        "WEIR_CONTROLPLANE_CONSISTENT_CONTROL_GRACE_PERIOD",
        "command line",
    ]
    assert loaded.warnings[0] == (
        f"{path}: controlPlane.consistent_control_grace_period has no effect, and never had one; remove it"
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("target_utilisation", 0.95, "must be less than utilisation_max"),
        ("subtasks_min", 65, "must be at most subtasks_max"),
        ("stages", ["score=8..2"], "each must be like score=2..8"),
        ("stages", ["score"], "but one is score"),
        ("stages", ["score=1..2@0.99"], "each must be like"),
        ("hook_url", "ftp://x", "autoscaler.hook_url"),
        ("window_s", 0, "from 2 to 3600 (s)"),
        ("most", 1, "unknown key"),
    ],
)
def test_bad_settings_of_the_autoscaler_are_named(tmp_path, key, value, words):
    path = write(tmp_path, {"autoscaler": {key: value}})
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    assert f"autoscaler.{key}" in str(caught.value)
    assert words in str(caught.value)


def test_bounds_of_single_stages(tmp_path):
    path = write(tmp_path, {"autoscaler": {"stages": ["score=2..8@0.6", "a=b=off"]}})
    score, other = load_config(path, {}, {}).config.autoscaler.stage_settings
    assert (score.step, score.least, score.most, score.target_utilisation) == ("score", 2, 8, 0.6)
    assert (other.step, other.is_scaled) == ("a=b", False)


def test_an_absent_default_file_means_defaults_and_says_so(in_empty_directory):
    loaded = load_config()
    assert loaded.config == Config()
    assert loaded.warnings == ["no config.json in the working directory: built-in defaults are in force"]


def test_the_default_file_is_read_from_the_working_directory(in_empty_directory):
    write(in_empty_directory, {"taskManager": {"tm_port": 8028}})
    assert load_config().config.task_manager.tm_port == 8028


def test_an_absent_file_that_was_asked_for_is_an_error():
    assert refusal("nowhere/weir.json") == "nowhere/weir.json: no such configuration file"


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path):
    path = write(tmp_path, {"taskManager": {"batch_size": 1, "tm_port": 1, "operator_quota": 7}})
    environment = {"WEIR_TASKMANAGER_BATCH_SIZE": "2", "WEIR_TASKMANAGER_TM_PORT": "2", "HOME": "/"}
    loaded = load_config(path, environment, {"taskManager.batch_size": "3"})
    task_manager = loaded.config.task_manager
    assert (task_manager.batch_size, task_manager.tm_port, task_manager.operator_quota) == (3, 2, 7)
    assert task_manager.batch_timeout_ms == 10


@pytest.mark.parametrize(
    ("dotted", "text", "value"),
    [
        ("prometheus.enabled", "yes", True),
        ("prometheus.enabled", "False", False),
        ("controlPlane.watermark_interval", "0.25", 0.25),
        ("controlPlane.etcd_endpoints", "http://a:1, http://b:2", ["http://a:1", "http://b:2"]),
        ("prometheus.job_name", "7", "7"),
        ("fileName", "other/events", "other/events"),
        ("taskManager.rocksdb.block_cache_bytes", "2097152", 2097152),
        ("taskManager.operator_bufferSize", "3", 3),
    ],
)
def test_text_of_a_variable_or_flag_becomes_the_keys_type(in_empty_directory, dotted, text, value):
    for config in (
        load_config(None, {environment_name(dotted): text}).config,
        load_config(None, {}, {dotted: text}).config,
    ):
        found = config.model_dump(mode="json", by_alias=True)
        for name in dotted.split("."):
            found = found[name]
        assert found == value
        assert type(found) is type(value)


def test_every_key_can_be_set_to_its_default_by_its_variable(in_empty_directory):
    environment = {}
    for key in all_keys().values():
        shown = ",".join(key.default) if isinstance(key.default, tuple) else str(key.default)
        environment[key.environment_name] = shown
    assert len(environment) == len(all_keys())
    assert load_config(None, environment).config == Config()


GOLDEN = [
    (
        {"taskManager": {"batch_sise": 1000}},
        "taskManager.batch_sise = 1000: unknown key; did you mean taskManager.batch_size?",
    ),
    (
        {"taskManger": {"batch_size": 1000}},
        'taskManger = {"batch_size": 1000}: unknown key; did you mean taskManager?',
    ),
    ({"filename": "x"}, 'filename = "x": unknown key; did you mean fileName?'),
    (
        {"controlPlane": {"batch_size": 3}},
        "controlPlane.batch_size = 3: unknown key; did you mean taskManager.batch_size?",
    ),
    (
        {"taskManager": {"use_hybrid": False}},
        "taskManager.use_hybrid = false: unknown key; did you mean taskManager.useHybrid?",
    ),
    (
        {"prometheus": {"zzz": None}},
        "prometheus.zzz = null: unknown key; prometheus has the keys enabled, prometheus_host, "
        "prometheus_port, push_enabled, pushgateway_host, pushgateway_port, push_interval_ms, job_name",
    ),
    (
        {"controlPlane": {"cp_grpc_port": "8008"}},
        'controlPlane.cp_grpc_port = "8008": must be an integer from 0 to 65535',
    ),
    (
        {"taskManager": {"cp_port": 0}},
        "taskManager.cp_port = 0: must be an integer from 1 to 65535",
    ),
    (
        {"controlPlane": {"watermark_interval": True}},
        "controlPlane.watermark_interval = true: must be a number above 0 and at most 3600 (s)",
    ),
    (
        {"controlPlane": {"max_parallelism": 4097}},
        "controlPlane.max_parallelism = 4097: must be an integer from 1 to 4096 (groups)",
    ),
    (
        {"controlPlane": {"etcd_endpoints": ["http://a:1", 2]}},
        "controlPlane.etcd_endpoints = 2: must be a list of texts",
    ),
    (
        {"controlPlane": {"lease_timeout_ms": 400}},
        "controlPlane.lease_timeout_ms = 400: must exceed twice heartbeat_interval_ms (200 ms), "
        "so at least 401",
    ),
    (
        {"controlPlane": {"heartbeat_interval_ms": 1000}},
        "controlPlane.lease_timeout_ms = 2000: must exceed twice heartbeat_interval_ms (1000 ms), "
        "so at least 2001",
    ),
    (
        {"taskManager": {"rocksdb": {"write_buffer_total_bytes": 65536}}},
        "taskManager.rocksdb.write_buffer_total_bytes = 65536: must be at least "
        "write_buffer_bytes (16777216)",
    ),
    (
        {"taskManager": {"state_backend": "rocks"}},
        'taskManager.state_backend = "rocks": must be "rocksdb" or "memory" or "cassandra"',
    ),
    (
        {"taskManager": {"cassandra": {"contact_points": []}}},
        "taskManager.cassandra.contact_points = []: must be a list of texts, at least one",
    ),
    *(
        (
            {"taskManager": {"cassandra": {"contact_points": ["db1", host]}}},
            f'taskManager.cassandra.contact_points = ["db1", "{host}"]: must be names or addresses of hosts without '
            f"ports, which '{host}' is not; port is that of all",
        )
        for host in ("", "db2:9042", "db2 db3", "[]")
    ),
    (
        {"taskManager": {"cassandra": {"tls_ca_file": "ca.pem", "tls_certificate_file": "own.pem"}}},
        'taskManager.cassandra.tls_private_key_file = "": must be there, too: a certificate and its private key go '
        "together",
    ),
    (
        {
            "taskManager": {
                "cassandra": {"tls_certificate_file": "own.pem", "tls_private_key_file": "own.key"}
            }
        },
        'taskManager.cassandra.tls_ca_file = "": must be there, too: without it connections have no TLS',
    ),
    (
        {"taskManager": {"cassandra": {"password": "secret"}}},
        'taskManager.cassandra.username = "": must be the user whose password is given',
    ),
    (
        {"taskManager": {"cassandra": {"username": "weir"}}},
        'taskManager.cassandra.password = "": must be that of the user weir',
    ),
    (
        {"taskManager": {"cassandra": {"dml_consistency": "ANY"}}},
        'taskManager.cassandra.dml_consistency = "ANY": must be "ONE" or "TWO" or "THREE" or "QUORUM" or "ALL" or '
        '"LOCAL_QUORUM" or "EACH_QUORUM" or "LOCAL_ONE"',
    ),
    (
        {"taskManager": {"cassandra": {"keyspace": "Weir"}}},
        'taskManager.cassandra.keyspace = "Weir": must be text like ^[a-z][a-z0-9_]{0,47}$',
    ),
    ({"taskManager": {"rocksDBPath": ""}}, 'taskManager.rocksDBPath = "": must be text, not empty'),
    (
        {"taskManager": {"host": "0.0.0.0"}},
        'taskManager.advertised_host = "": must be the name or address under which others reach this machine, '
        "since host is 0.0.0.0",
    ),
    (
        {"controlPlane": {"host": "::", "advertised_host": "[::]"}},
        'controlPlane.advertised_host = "[::]": must be the name or address under which others reach this machine, '
        "since host is ::",
    ),
    (
        {"controlPlane": {"advertised_host": "weir.example:80"}},
        'controlPlane.advertised_host = "weir.example:80": must be a host name or an IP address, without a port',
    ),
    ({"prometheus": {"enabled": 1}}, "prometheus.enabled = 1: must be true or false"),
    ({"prometheus": [1]}, "prometheus = [1]: must be an object, {...}"),
]


@pytest.mark.parametrize(("document", "message"), GOLDEN, ids=[message[:40] for _, message in GOLDEN])
def test_a_refusal_names_file_key_value_and_what_is_allowed(tmp_path, document, message):
    path = write(tmp_path, document)
    assert refusal(path) == f"{path}: {message}"


def test_every_problem_is_listed_with_where_it_came_from(tmp_path):
    path = write(tmp_path, {"taskManager": {"tm_port": -1, "batch_size": 5}})
    environment = {"WEIR_TASKMANAGER_BATCHSIZE": "1", "WEIR_X": "1", "WEIR_TASKMANAGER_BATCH_SIZE": "big"}
    assert refusal(path, environment, {"taskManager.operatorQuota": "9"}).splitlines() == [
        'WEIR_TASKMANAGER_BATCHSIZE = "1": unknown variable; did you mean WEIR_TASKMANAGER_BATCH_SIZE?',
        'WEIR_X = "1": unknown variable; variables are called WEIR_<SECTION>_<KEY>',
        'command line: taskManager.operatorQuota = "9": unknown key; '
        "did you mean taskManager.operator_quota?",
        f"{path}: taskManager.tm_port = -1: must be an integer from 0 to 65535",
        'WEIR_TASKMANAGER_BATCH_SIZE: taskManager.batch_size = "big": must be an integer from 1 to '
        "16777216 (rows)",
    ]


def test_a_check_over_two_keys_names_the_variable_that_set_the_wrong_one(in_empty_directory):
    message = refusal(None, {"WEIR_CONTROLPLANE_LEASE_TIMEOUT_MS": "100"})
    assert message.startswith("WEIR_CONTROLPLANE_LEASE_TIMEOUT_MS: controlPlane.lease_timeout_ms = 100: must")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "fileName": "x",\n  oops\n}', "line 3, column 3: "),
        ("", "line 1, column 1: "),
        ("[]", "must hold one JSON object, not []"),
        ('{"fileName": "a", "fileName": "b"}', "the key 'fileName' is there twice; keep one"),
        ('{"controlPlane": {"watermark_interval": NaN}}', "NaN is not a JSON number"),
        ('{"fileName": "a"} x', "line 1, column 19: "),
        ("[" * 100_000, ""),
    ],
)
def test_a_file_that_is_no_json_object_is_refused_with_its_place(tmp_path, text, message):
    path = write(tmp_path, text)
    assert refusal(path).startswith(f"{path}: {message}")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(path).startswith(f"{path}: cannot be read: ")


def test_the_former_name_is_accepted_with_a_warning(tmp_path):
    path = write(tmp_path, {"taskManager": {"useMigration": False}})
    assert load_config(path).warnings == [
        f"{path}: taskManager.useMigration is now called taskManager.useMigrate"
    ]
    loaded = load_config(write(tmp_path, {}), {"WEIR_TASKMANAGER_USEMIGRATION": "false"})
    assert loaded.warnings[0].startswith("WEIR_TASKMANAGER_USEMIGRATION: ")
    assert not load_config(
        write(tmp_path, {"taskManager": {"useMigration": False}})
    ).config.task_manager.use_migrate


def test_both_names_at_once_are_refused(tmp_path):
    path = write(tmp_path, {"taskManager": {"useMigration": False, "useMigrate": False}})
    assert (
        refusal(path)
        == f"{path}: taskManager.useMigration: taskManager.useMigrate is there as well; keep that one"
    )


def test_deprecated_keys_are_accepted_with_a_warning(tmp_path):
    path = write(tmp_path, {"controlPlane": {"etcd_endpoints": ["http://a:2379"], "test_etcd_conn": True}})
    assert load_config(path).warnings == [
        f"{path}: controlPlane.test_etcd_conn is deprecated and ignored; remove it or set it to false",
    ]


def test_set_flags_are_parsed_and_the_last_one_wins():
    assert parse_set_flags(["a.b=1", "c = x=y ", "a.b=2"]) == {"a.b": "2", "c": "x=y"}
    with pytest.raises(ConfigError, match=r"command line: --set a\.b: write --set section\.key=value"):
        parse_set_flags(["a.b"])


def test_models_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Config().task_manager.batch_size = 1


def test_every_key_has_a_meaning_and_numbers_have_a_unit_or_are_ports():
    assert len({key.environment_name for key in all_keys().values()}) == len(all_keys())
    for key in all_keys().values():
        assert key.field.description.endswith((".", "yet.")), key.dotted
        if key.field.annotation in (int, float) and not key.dotted.endswith("port"):
            assert key.unit, key.dotted
            if key.unit in ("ms", "bytes") and "interval" not in key.dotted:
                assert key.dotted.endswith((f"_{key.unit}", f"_{key.unit}_max")), key.dotted


def test_sections_are_found_at_every_depth():
    assert set(section_models()) == {
        "",
        "controlPlane",
        "taskManager",
        "taskManager.rocksdb",
        "taskManager.cassandra",
        "autoscaler",
        "prometheus",
        "security",
        "traces",
    }


@pytest.mark.parametrize(
    ("keys", "strategy", "words"),
    [
        ((False, True, False), StateStrategy(StateMove.SHIPPED), "useHybrid false"),
        (
            (True, False, True),
            StateStrategy(StateMove.LEFT),
            "useHybrid true, useMigrate false, useCache true",
        ),
        (
            (True, True, False),
            StateStrategy(StateMove.FETCHED, asks_for_places=True),
            "useHybrid true, useMigrate true, useCache false",
        ),
    ],
)
def test_three_keys_are_one_strategy(keys, strategy, words):
    hybrid, migrate, cache = keys
    section = TaskManagerConfig(use_hybrid=hybrid, use_migrate=migrate, use_cache=cache)
    assert section.state_strategy == strategy
    assert str(strategy) == words
