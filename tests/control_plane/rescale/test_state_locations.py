"""Where the state of key groups is, as pages count it."""

from control_plane.rescale.state_locations import StateLocations


def test_groups_are_counted_while_their_state_is_not_with_their_owner():
    owners = {(1, 0): "a", (1, 1): "b", (2, 0): "a"}
    locations = StateLocations(lambda stage, group: owners[stage, group])
    assert not locations.has_remote()
    locations.pin(1, [0, 1])
    locations.pin(2, [0])
    owners[1, 0] = owners[2, 0] = "b"
    assert locations.remote_counts() == {1: 1, 2: 1}
    locations.note(1, [0], ["b"])
    assert locations.remote_counts() == {2: 1}
    assert locations.has_remote()
    locations.moved_to_owner(2, 0)
    assert not locations.has_remote()
    assert locations.remote_counts()[1] == 0
