"""``python -m services``: what it refuses, and a real Kafka that is killed and comes back."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import services
from experiments.ports import free_port
from services import daemon, jars, kafka
from services.errors import ServiceError
from weir.examples import country_table, punctuators, word_count


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "services", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_values_that_are_set_are_key_and_value():
    assert daemon.assignments(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    for text in ("a", "=b"):
        with pytest.raises(ServiceError, match="KEY=VALUE"):
            daemon.assignments([text])


def test_a_directory_keeps_its_settings(tmp_path):
    daemon.check_settings(tmp_path, {"port": 1})
    daemon.remember(tmp_path, {"port": 1})
    daemon.check_settings(tmp_path, {"port": 1})
    with pytest.raises(ServiceError, match=r"port 1 -> 2.*stop --wipe"):
        daemon.check_settings(tmp_path, {"port": 2})


def test_only_directories_of_services_are_deleted(tmp_path):
    daemon.wipe(tmp_path)
    assert tmp_path.exists()
    daemon.remember(tmp_path, {})
    daemon.wipe(tmp_path)
    assert not tmp_path.exists()


def test_a_port_in_use_is_named():
    port = free_port()
    with daemon.socket.socket() as listener:
        listener.bind((daemon.HOST, port))
        listener.listen()
        with pytest.raises(ServiceError, match=f"port {port} cannot be used .*--base-port"):
            daemon.check_ports({port: "--base-port"})


def test_what_is_not_there_is_said_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(ServiceError, match="no broker 2 in"):
        kafka.kill(tmp_path, 2)
    assert kafka.states(tmp_path) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "java and mvn not on PATH" in jars.missing_program()
    with pytest.raises(ServiceError, match="openjdk"):
        jars.jars("kafka")


def test_options_for_each_java_machine_come_last(monkeypatch):
    monkeypatch.setenv("SERVICES_JVM", "-Xb -Xc")
    assert jars.java("-Xa") == ["java", "-Xa", "-Xb", "-Xc"]
    monkeypatch.delenv("SERVICES_JVM")
    assert jars.java("-Xa") == ["java", "-Xa"]


def test_what_examples_read_by_default_is_there_after_make_services():
    root = Path(services.__file__).parents[1]
    filled = dict(re.findall(r"services kafka fill (\S+) (\S+)", (root / "Makefile").read_text()))
    for example, text in (
        (word_count, "countries.txt"),
        (punctuators, "countries.txt"),
        (country_table, "european_union.jsonl"),
    ):
        topic = inspect.signature(example.build).parameters["topic"].default
        assert filled[topic] == f"weir/examples/{text}"
        assert (root / filled[topic]).is_file()


@pytest.mark.service
def test_a_broker_that_is_killed_comes_back_with_what_was_acknowledged(tmp_path):
    if missing := jars.missing_program():
        pytest.skip(missing)
    directory = tmp_path / "kafka"
    port = free_port()
    start = ("kafka", "start", "--dir", directory, "--base-port", port)
    try:
        code, address, said = command(*start)
        assert (code, address) == (0, f"127.0.0.1:{port}\n"), said
        lines = tmp_path / "lines.txt"
        lines.write_text("finland\nfrance\n")
        fill = ("kafka", "fill", "texts", lines, "--bootstrap", address.strip())
        assert [command(*fill)[2] for _ in range(2)] == [
            f"topic texts has the 2 lines of {lines}\n",
            "topic texts is there already\n",
        ]
        assert command("kafka", "fill", "texts", tmp_path / "none", "--bootstrap", address.strip())[0] == 1
        lines.write_text("x\n" * 100_001 + "y" * 2_000_000)
        code, _, said = command("kafka", "fill", "many", lines, "--bootstrap", address.strip())
        assert code == 1
        assert "has not taken 1 of 100002 lines" in said
        assert "too large" in said
        producer = Producer({"bootstrap.servers": address.strip(), "acks": "all"})
        producer.produce("words", value=b"belgium")
        assert producer.flush(30) == 0
        assert command("kafka", "kill", 1, "--dir", directory)[0] == 0
        assert command("kafka", "status", "--dir", directory)[0] == 3
        assert command(*start)[0] == 0
        assert "serving" in command("kafka", "status", "--dir", directory)[1]
        settings = {"bootstrap.servers": address.strip(), "group.id": "test", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe(["words"])
        message = consumer.poll(30)
        consumer.close()
        assert message is not None
        assert message.value() == b"belgium"
    finally:
        assert command("kafka", "stop", "--dir", directory, "--wipe")[0] == 0
    assert not directory.exists()
