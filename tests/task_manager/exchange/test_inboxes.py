"""Where channels end, and that they end once."""

import pytest

import weir
from task_manager.exchange.inbox import ChannelOpened
from task_manager.exchange.inboxes import Inboxes
from task_manager.topology import Topology
from weir.errors import HandshakeError
from weir.plan.stages import physical_graph
from weir.rows.records import EndOfStream
from weir.types import ChannelId, SubtaskId

CONSUMER, NEW = SubtaskId(1, 0), SubtaskId(0, 5)
CHANNEL = ChannelId(NEW, CONSUMER, 0)


@pytest.fixture
def inboxes():
    flow = weir.Dataflow("job", max_parallelism=8)
    rows = flow.source("rows", weir.JsonLines("rows", schema={"key": int}))
    rows.key_by("key").count("count").sink("out", weir.Blackhole())
    here = Inboxes("h:1", Topology(physical_graph(flow.build()), {}, {}))
    here.add(CONSUMER)
    return here


def taken(inbox):
    elements = []
    while (delivery := inbox.poll(0.0)) is not None:
        elements.append((delivery.channel, type(delivery.element)))
    return elements


def test_channels_of_a_lost_producer_end_once_however_often_it_is_said(inboxes):
    """An order whose reply was lost is given again."""
    inbox = inboxes.open(CHANNEL)
    inboxes.end_channels_of([NEW])
    inboxes.end_channels_of([NEW])
    assert taken(inbox) == [(CHANNEL, ChannelOpened), (CHANNEL, EndOfStream)]


def test_channels_of_a_subtask_that_failed_end_when_it_is_forgotten(inboxes):
    """The order to end them comes later, and finds none: the consumer would wait for ever."""
    inbox = inboxes.open(CHANNEL)
    inboxes.add(NEW)
    inboxes.forget(NEW, has_failed=True)
    inboxes.end_channels_of([NEW])
    assert taken(inbox) == [(CHANNEL, ChannelOpened), (CHANNEL, EndOfStream)]


def test_a_channel_of_a_lost_producer_is_not_opened_any_more(inboxes):
    """What it sent last may come after the news that it is gone: nobody would end the channel."""
    inboxes.end_channels_of([NEW])
    with pytest.raises(HandshakeError, match="its producer was given up for lost"):
        inboxes.open(CHANNEL)


def test_a_channel_to_a_subtask_that_is_not_here_is_refused(inboxes):
    with pytest.raises(HandshakeError, match="does not end on task manager h:1"):
        inboxes.open(ChannelId(NEW, SubtaskId(1, 7), 0))
