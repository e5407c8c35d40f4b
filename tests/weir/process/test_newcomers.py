"""Connections that have proved nothing: of too many the oldest goes, and none lasts while others come."""

import socket

import pytest

from weir.process.newcomers import PATIENCE_S, Entrance, Newcomers
from weir.testing.manual_clock import ManualClock


@pytest.fixture
def pairs():
    """Makes connections; returns our end and theirs."""
    made = []

    def make():
        made.extend(found := socket.socketpair())
        found[1].settimeout(5)
        return found

    yield make
    for each in made:
        each.close()


def is_open(theirs):
    theirs.setblocking(False)
    try:
        return theirs.recv(1) != b""
    except BlockingIOError:
        return True


def test_of_too_many_the_oldest_that_has_proved_nothing_goes(pairs):
    newcomers = Newcomers(2)
    found = [pairs() for _ in range(4)]
    for ours, _ in found:
        newcomers.came(ours)
        if ours is found[0][0]:
            newcomers.proved(ours.fileno())
    assert [is_open(theirs) for _, theirs in found] == [True, False, True, True]
    assert len(newcomers) == 2


def test_who_takes_too_long_goes_when_another_one_comes(pairs):
    clock = ManualClock()
    newcomers = Newcomers(10, clock)
    (first, of_first), (second, of_second) = pairs(), pairs()
    newcomers.came(first)
    clock.advance_ms(1_000 * (PATIENCE_S + 1))
    newcomers.came(second)
    assert (is_open(of_first), is_open(of_second)) == (False, True)


def test_a_socket_that_takes_the_descriptor_over_is_hung_up_on_in_its_place(pairs):
    newcomers = Newcomers(1)
    ours, theirs = pairs()
    newcomers.came(ours)
    number = ours.fileno()
    with socket.socket(fileno=ours.detach()) as taken:
        newcomers.is_now(number, taken)
        newcomers.came(pairs()[0])
        assert not is_open(theirs)


def test_an_entrance_notes_who_comes():
    with Entrance(socket.create_server(("127.0.0.1", 0))) as entrance:
        with socket.create_connection(entrance.getsockname()):
            connected, _ = entrance.accept()
            assert len(entrance.newcomers) == 1
            entrance.newcomers.proved(connected.fileno())
            connected.close()
        assert len(entrance.newcomers) == 0
