from task_manager import job_opening
from weir.config import Config, ControlPlaneConfig
from weir.rpc import control_pb2


def test_the_facts_that_sinks_write_have_no_credentials():
    config = Config(
        control_plane=ControlPlaneConfig(
            checkpoint_uri="s3://AKIA:s3cr3t@bucket/path?secret_key=s3cr3t&session_token=s3cr3t",
            etcd_endpoints=("http://root:s3cr3t@etcd:2379",),
        )
    )
    parameters = {"database": "postgresql://u:s3cr3t@db/x", "password": "s3cr3t", "rate": 5}
    settings = job_opening._settings(control_pb2.DeployRequest(job_module="jobs.x"), parameters, config)
    assert "s3cr3t" not in str(settings.run_facts)
    assert settings.run_facts["parameters"] == {
        "database": "postgresql://***@db/x",
        "password": "***",
        "rate": 5,
    }
    assert settings.run_facts["config"]["controlPlane"]["etcd_endpoints"] == ["http://***@etcd:2379"]
    assert parameters["password"] == "s3cr3t"
