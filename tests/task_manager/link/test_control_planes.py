import pytest

from task_manager.link.control_planes import ControlPlanes, control_plane_addresses
from weir.config import TaskManagerConfig
from weir.errors import ConfigError


def test_each_address_once_the_first_one_first():
    config = TaskManagerConfig(cp_host="a", cp_port=1, control_planes=("b:2", "a:1", "c:3"))
    assert control_plane_addresses(config) == ["a:1", "b:2", "c:3"]


def test_a_wrong_address_is_told_with_its_key():
    with pytest.raises(ConfigError, match=r"taskManager.control_planes: 'b' is not an address"):
        control_plane_addresses(TaskManagerConfig(control_planes=("b",)))


def test_they_are_tried_in_turn():
    planes = ControlPlanes(["a:1", "b:2"])
    seen = []
    for _ in range(3):
        seen.append((planes.address, planes.stub))
        planes.try_next()
    assert [address for address, _ in seen] == ["a:1", "b:2", "a:1"]
    assert seen[0][1] is seen[2][1] is not seen[1][1]
    assert planes.addresses == "a:1 or b:2"
    planes.close()
