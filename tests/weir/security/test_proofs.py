"""Proofs of the secret that processes of one user share, and the files that hold it."""

import os
import stat

import pytest

from weir.errors import ConfigError, HandshakeError
from weir.security.private_files import (
    machine_secret,
    private_directory,
    read_private,
    secret_path,
    write_private,
)
from weir.security.proofs import ProofChecker, Prover
from weir.security.roles import Role, callers, role_of_names, takes_orders


class Time:
    now = 1_000.0

    def __call__(self):
        return self.now


def test_a_proof_tells_the_role_for_a_minute():
    time = Time()
    prover, checker = Prover(b"s" * 32, Role.TASK_MANAGER, time), ProofChecker(b"s" * 32, time)
    proof = prover.proof()
    assert checker.role_of(proof) is Role.TASK_MANAGER
    time.now += 59
    assert checker.role_of(proof) is Role.TASK_MANAGER
    time.now += 10
    with pytest.raises(HandshakeError, match="old"):
        checker.role_of(proof)
    assert checker.role_of(prover.proof()) is Role.TASK_MANAGER


@pytest.mark.parametrize("secret", [b"t" * 32, b""])
def test_another_secret_proves_nothing(secret):
    time = Time()
    checker = ProofChecker(b"s" * 32, time)
    with pytest.raises(HandshakeError, match="another secret"):
        checker.role_of(Prover(secret, Role.TASK_MANAGER, time).proof())


@pytest.mark.parametrize(
    "proof",
    ["", "x", "task-manager 1 2", "task-manager x y", "a b c d", "ä b c", "task-manager 1 " + "0" * 500],
)
def test_what_is_no_proof_is_refused(proof):
    with pytest.raises(HandshakeError):
        ProofChecker(b"s" * 32, Time()).role_of(proof)


def test_a_role_cannot_be_put_in_place_of_another_one():
    time = Time()
    proof = Prover(b"s" * 32, Role.CLIENT, time).proof()
    with pytest.raises(HandshakeError):
        ProofChecker(b"s" * 32, time).role_of(proof.replace("client", "control-plane"))


def test_the_secret_is_made_once_for_its_owner_only(tmp_path):
    path = tmp_path / "new" / "weir" / "secret"
    old = os.umask(0)
    try:
        first = machine_secret(path)
    finally:
        os.umask(old)
    assert machine_secret(path) == first
    assert len(first) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["secret"]


def test_a_secret_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "secret"
    write_private(path, b"x" * 64)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_private(path, "security.secret_file")


def test_a_short_secret_is_refused(tmp_path):
    write_private(tmp_path / "secret", b"short")
    with pytest.raises(ConfigError, match="needs 32"):
        machine_secret(tmp_path / "secret")


def test_a_directory_that_is_there_stays_as_it_is(tmp_path):
    tmp_path.chmod(0o755)
    private_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_where_the_secret_is():
    assert str(secret_path("/x/y", {})) == "/x/y"
    assert str(secret_path("", {"XDG_STATE_HOME": "/state"})) == "/state/weir/secret"
    assert str(secret_path("", {"XDG_STATE_HOME": "relative"})).endswith("/.local/state/weir/secret")


def test_who_may_make_which_call():
    assert callers("/weir.v1.TaskManager/Deploy") == {Role.CONTROL_PLANE}
    assert callers("/weir.v1.TaskManager/HandOver") == {Role.TASK_MANAGER}
    assert callers("/weir.v1.ControlPlane/Heartbeat") == {Role.TASK_MANAGER}
    assert callers("/weir.log.v1.LogBroker/Replicate") == {Role.LOG_BROKER}
    assert Role.CLIENT in callers("/weir.log.v1.LogBroker/Produce")
    assert callers("/of.others/Call") == frozenset() == callers("") == callers("/")
    assert takes_orders("/weir.v1.TaskManager/EndCheckpoint")
    for method in ("Profile", "LogTail"):
        assert callers(f"/weir.v1.TaskManager/{method}") == {Role.CONTROL_PLANE}
        assert takes_orders(f"/weir.v1.TaskManager/{method}")
    assert not takes_orders("/weir.v1.TaskManager/Status")
    assert not takes_orders("/weir.v1.TaskManager/TakeImage")


def test_every_call_of_the_wire_is_for_somebody():
    from weir.rpc import control_pb2, data_pb2, log_pb2, state_pb2

    for module in (control_pb2, data_pb2, log_pb2, state_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert callers(f"/{service.full_name}/{method.name}"), method.full_name


def test_a_certificate_has_one_role():
    assert role_of_names(["localhost", "client.weir.internal"]) is Role.CLIENT
    assert role_of_names(["localhost"]) is None
    assert role_of_names(["client.weir.internal", "task-manager.weir.internal"]) is None
