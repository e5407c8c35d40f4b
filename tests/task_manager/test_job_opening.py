import pytest

from task_manager import job_opening
from weir.config import Config, ControlPlaneConfig, StateMove, StateStrategy
from weir.errors import HandshakeError
from weir.rpc import control_pb2
from weir.rpc.wire import strategy_from_proto, strategy_to_proto


def test_the_facts_that_sinks_write_have_no_credentials():
    config = Config(
        control_plane=ControlPlaneConfig(
            checkpoint_uri="s3://AKIA:s3cr3t@bucket/path?secret_key=s3cr3t&session_token=s3cr3t",
            etcd_endpoints=("http://root:s3cr3t@etcd:2379",),
        )
    )
    parameters = {"database": "postgresql://u:s3cr3t@db/x", "password": "s3cr3t", "rate": 5}
    request = control_pb2.DeployRequest(
        job_module="jobs.x",
        state_strategy=strategy_to_proto(StateStrategy(StateMove.LEFT, asks_for_places=True)),
    )
    settings = job_opening._settings(request, parameters, config)
    assert settings.strategy == StateStrategy(StateMove.LEFT, asks_for_places=True)
    assert "s3cr3t" not in str(settings.run_facts)
    assert settings.run_facts["parameters"] == {
        "database": "postgresql://***@db/x",
        "password": "***",
        "rate": 5,
    }
    assert settings.run_facts["config"]["controlPlane"]["etcd_endpoints"] == ["http://***@etcd:2379"]
    assert parameters["password"] == "s3cr3t"


@pytest.mark.parametrize(
    "strategy", [StateStrategy(move) for move in StateMove] + [StateStrategy(asks_for_places=True)]
)
def test_a_strategy_goes_over_the_wire(strategy):
    assert strategy_from_proto(strategy_to_proto(strategy)) == strategy


def test_a_deploy_without_a_strategy_is_refused():
    with pytest.raises(HandshakeError, match="run the same Weir version everywhere"):
        strategy_from_proto(control_pb2.DeployRequest().state_strategy)
