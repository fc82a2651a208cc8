"""Ranges and ends of RabbitMQ streams, over links that are not real."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

from waterspout.errors import DataLossError, OutageError
from waterspout.spouts import _amqp_streams
from waterspout.spouts._amqp_streams import StreamTail, messages_of


class FakeLink:
    """Gives messages with these offsets, as many as may be open, and more when they are acked."""

    def __init__(self, offsets, prefetch):
        self.coming, self.prefetch = deque(offsets), prefetch
        self.inbox, self.acked, self.sent = deque(), 0, 0
        self.error, self.final, self.ready, self.closed = None, False, True, False
        self.poll()

    def poll(self, wait_s=0.0):
        while self.coming and self.sent - self.acked < self.prefetch:
            self.sent += 1
            offset = self.coming.popleft()
            properties = SimpleNamespace(headers={"x-stream-offset": offset})
            self.inbox.append((SimpleNamespace(delivery_tag=self.sent), properties, b"%d" % offset))

    def wait(self, done, timeout_s):
        self.poll()
        return done()

    def ack_up_to(self, tag):
        self.acked = tag

    def close(self):
        self.closed = True


class FakeBroker:
    timeout_s = 1.0

    def __init__(self, offsets=()):
        self.offsets, self.links = list(offsets), []

    def consume(self, queue, start, prefetch):
        first = self.offsets[-1:] if start == "last" else self.offsets
        link = FakeLink(first, prefetch)
        self.links.append(link)
        return link

    def error(self, queue, link):
        return OutageError("rabbitmq", "no answer in time")


def read(broker, start, end):
    return [offset for offset, _ in messages_of(broker, "s", start, end)]


def test_a_range_is_all_of_its_messages_and_no_other():
    broker = FakeBroker(range(3, 5000))

    # The broker may begin with the chunk, and has more than is asked for.
    assert read(broker, 5, 4000) == list(range(5, 4000))
    assert broker.links[0].closed


@pytest.mark.parametrize("offsets", [[7, 8, 9], [5, 6, 8, 9], [20]])
def test_messages_that_are_gone_are_a_loss(offsets):
    with pytest.raises(DataLossError, match=r"messages \d to \d of the RabbitMQ stream 's' are"):
        read(FakeBroker(offsets), 5, 10)


def test_a_broker_that_gives_no_more_is_away():
    broker = FakeBroker([5, 6])

    with pytest.raises(OutageError):
        read(broker, 5, 10)
    assert broker.links[0].closed


def test_nothing_is_asked_for_an_empty_range():
    broker = FakeBroker()

    assert (read(broker, 5, 5), broker.links) == ([], [])


def test_a_tail_follows_the_newest_message_and_acks_it():
    broker = FakeBroker([9])
    tail = StreamTail(broker, "s")
    assert tail.look(100) == 10

    broker.links[0].coming.extend([10, 11])

    assert tail.look(100) == 12
    assert broker.links[0].acked == 3
    assert len(broker.links) == 1


def test_a_tail_that_knows_enough_takes_nothing():
    broker = FakeBroker([9])
    tail = StreamTail(broker, "s")
    tail.look(5)
    broker.links[0].coming.append(10)

    assert tail.look(5) == 10
    assert len(broker.links[0].coming) + len(broker.links[0].inbox) == 1


def test_a_tail_far_behind_jumps_to_the_last_chunk(monkeypatch):
    monkeypatch.setattr(_amqp_streams, "_TAIL_PREFETCH", 10)
    broker = FakeBroker([0])
    tail = StreamTail(broker, "s")
    tail.look(100)
    broker.links[0].coming.extend(range(1, 1000))
    assert tail.look(100) < 100
    broker.offsets = [5000]

    assert tail.look(100) == 5001
    assert broker.links[0].closed
    assert len(broker.links[0].coming) > 900


def test_a_tail_of_a_stream_that_was_made_anew_knows_less():
    broker = FakeBroker([99])
    tail = StreamTail(broker, "s")
    assert tail.look(1000) == 100
    tail.close()
    broker.offsets = [2]

    assert tail.look(1000) == 3


def test_an_empty_stream_has_no_end_yet():
    assert StreamTail(FakeBroker(), "s").look(10) is None


def test_a_link_that_is_lost_is_given_up_and_made_again():
    broker = FakeBroker([9])
    tail = StreamTail(broker, "s")
    tail.look(100)
    broker.links[0].error = ConnectionResetError()

    with pytest.raises(OutageError):
        tail.look(100)
    assert tail.look(100) == 10
    assert len(broker.links) == 2
