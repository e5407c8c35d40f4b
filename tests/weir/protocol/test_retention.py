"""What of a checkpoint store may be deleted, and what never."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.protocol.checkpoints.retention import Expired, checkpoint_of, expired

MANIFESTS = {
    3: {"files/1/a/1.sst", "files/3/a/2.sst"},
    4: {"files/1/a/1.sst", "files/4/a/3.sst"},
    6: {"files/4/a/3.sst", "files/6/a/4.sst", "files/4/a/5.sst"},
    7: {"files/6/a/4.sst", "files/7/a/6.sst"},
}


def test_the_newest_stay_with_all_that_they_name():
    result = expired(MANIFESTS, 2, directories=[1, 2, 3, 4, 5, 6, 7, 8])
    assert result == Expired((3, 4), (1, 2, 3, 5), ())
    result = expired(MANIFESTS, 1, directories=[1, 3, 4, 6, 7])
    assert result == Expired((3, 4, 6), (1, 3, 4), ())


def test_single_files_go_from_a_directory_that_stays():
    manifests = {3: {"files/3/a/1.sst", "files/3/a/2.sst"}, 4: {"files/3/a/2.sst"}}
    assert expired(manifests, 1, directories=[3]) == Expired((3,), (), ("files/3/a/1.sst",))


def test_files_that_nobody_named_go_too_if_they_are_told():
    manifests = {3: {"files/3/a/1.sst"}, 5: {"files/3/a/1.sst"}}
    files = ["files/2/a/9.sst", "files/3/a/1.sst", "files/3/a/lost.sst", "files/5/a/7.sst", "files/6/a/8.sst"]
    result = expired(manifests, 1, directories=[2, 3, 5, 6], files=files)
    assert result == Expired((3,), (2,), ("files/3/a/lost.sst",))


def test_what_is_in_flight_keeps_files_and_manifests():
    assert expired(MANIFESTS, 1, directories=[1, 2, 3, 5], in_flight=[3]) == Expired((4, 6), (2,), ()), (
        "3 and its files stay: a job starts from it"
    )
    assert expired({5: set()}, 1, directories=[2, 3, 4, 5], in_flight=[3]).directories == (2,)


def test_nothing_complete_means_nothing_goes():
    assert expired({}, 3, directories=[1, 2]) == Expired((), (), ())


def test_zero_checkpoints_cannot_be_retained():
    with pytest.raises(ValueError, match="at least one"):
        expired({}, 0)


@pytest.mark.parametrize("path", ["savepoints/1/x", "files/x/y", "files", "files/-1/x", "files/²/x", ""])
def test_other_paths_are_never_touched(path):
    assert checkpoint_of(path) is None
    assert expired({1: {path}, 2: set()}, 1).paths == ()


NUMBERS = st.integers(1, 12)
PATHS = st.builds("files/{}/s/{}".format, NUMBERS, st.integers(1, 3))


@given(
    st.dictionaries(NUMBERS, st.sets(PATHS, max_size=5), max_size=6),
    st.integers(1, 4),
    st.sets(NUMBERS),
    st.sets(NUMBERS, max_size=2),
    st.sets(PATHS, max_size=5),
)
def test_no_file_goes_that_somebody_may_need(manifests, retained, directories, in_flight, files):
    result = expired(manifests, retained, directories=directories, in_flight=in_flight, files=files)
    staying = [i for i in manifests if i not in result.manifests]
    assert len(staying) >= min(retained, len(manifests))
    assert not set(result.manifests) & in_flight
    assert not staying or max(manifests) in staying
    named = {path for i in staying for path in manifests[i]}
    assert not named & set(result.paths)
    assert not {checkpoint_of(path) for path in named} & set(result.directories)
    gone = {*result.directories, *(checkpoint_of(path) for path in result.paths)}
    assert all(number < min([*staying, *in_flight]) for number in gone)
