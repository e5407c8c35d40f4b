"""Where two logs part is told by their epochs."""

import pytest

from weir.protocol.log.lineage import Lineage


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "agreed"),
    [
        ([(1, 0)], 10, [(1, 0)], 7, 7),
        ([(1, 0)], 10, [], 0, 0),
        # The other one has written on in an epoch that ended here.
        ([(1, 0), (3, 5)], 9, [(1, 0)], 8, 5),
        # An epoch that only the other one has.
        ([(1, 0), (3, 5)], 9, [(1, 0), (2, 5)], 8, 5),
        ([(1, 0), (3, 5)], 9, [(1, 0), (2, 4)], 8, 4),
        # KIP-279: both have epochs that the other one has not.
        ([(1, 0), (4, 6)], 9, [(1, 0), (2, 3), (3, 5)], 8, 3),
        ([(2, 4)], 9, [(1, 0)], 3, 0),
    ],
)
def test_two_logs_agree_up_to_where_their_latest_shared_epoch_ends_first(
    ours, our_end, theirs, their_end, agreed
):
    assert Lineage(ours).agreement(our_end, theirs, their_end) == agreed
    assert Lineage(theirs).agreement(their_end, ours, our_end) == agreed


def test_a_cut_forgets_epochs_of_which_nothing_is_left():
    lineage = Lineage([(1, 0), (2, 5), (4, 8)])
    lineage.truncate(8)
    assert lineage.starts == [(1, 0), (2, 5)]
    lineage.truncate(6)
    assert lineage.last_epoch == 2
    lineage.truncate(0)
    assert lineage.last_epoch == 0


def test_an_epoch_is_noted_once():
    lineage = Lineage()
    for offset in (0, 1, 2):
        lineage.add(3, offset)
    assert lineage.starts == [(3, 0)]
