"""Ids of messages against tags of deliveries: nothing is acked that was not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waterspout.spouts._deliveries import Acknowledgements, Deliveries


def test_all_acked_is_one_word():
    deliveries = Deliveries(10)
    ids = [deliveries.deliver(name, tag, False) for tag, name in enumerate("abc", 1)]

    for msg_id in reversed(ids):
        deliveries.ack(msg_id)

    assert deliveries.take_acknowledgements() == Acknowledgements(ack_up_to=3)
    assert deliveries.take_acknowledgements() == Acknowledgements()


def test_what_is_above_an_open_one_is_acked_one_by_one():
    deliveries = Deliveries(10)
    ids = [deliveries.deliver(name, tag, False) for tag, name in enumerate("abcde", 1)]

    for number in (4, 0, 2):
        deliveries.ack(ids[number])

    assert deliveries.take_acknowledgements() == Acknowledgements(ack_up_to=1, ack=[3, 5])


def test_a_failed_one_does_not_hold_up_the_others():
    deliveries = Deliveries(10)
    ids = [deliveries.deliver(name, tag, False) for tag, name in enumerate("abc", 1)]

    deliveries.fail(ids[0])
    deliveries.ack(ids[1])

    assert deliveries.take_acknowledgements() == Acknowledgements(requeue=[1], ack_up_to=2)


def test_copies_are_numbered_and_come_back_under_their_number():
    deliveries = Deliveries(10)
    ids = [deliveries.deliver("x", tag, False) for tag in (1, 2, 3)]
    deliveries.ack("x")
    deliveries.fail("x.2")

    fresh = deliveries.deliver("x", 4, False)
    back = deliveries.deliver("x", 5, True)

    assert ids == ["x", "x.2", "x.3"]
    assert back == "x.2"
    assert fresh not in {"x.2", "x.3"}


def test_the_id_of_one_that_comes_back_is_kept_for_it():
    deliveries = Deliveries(10)
    deliveries.fail(deliveries.deliver("x", 1, False))

    fresh = deliveries.deliver("x", 2, False)

    assert fresh == "x.2"
    assert deliveries.deliver("x", 3, True) == "x"


def test_what_is_being_processed_is_not_emitted_again_after_a_loss():
    deliveries = Deliveries(10)
    deliveries.deliver("a", 7, False)
    deliveries.lost()

    again = deliveries.deliver("a", 1, True)
    deliveries.ack("a")

    assert again is None
    assert deliveries.take_acknowledgements() == Acknowledgements(ack_up_to=1)


def test_an_ack_between_the_loss_and_the_redelivery_is_ignored():
    deliveries = Deliveries(10)
    deliveries.deliver("a", 7, False)
    deliveries.lost()
    deliveries.ack("a")

    assert deliveries.take_acknowledgements() == Acknowledgements()
    assert deliveries.deliver("a", 1, True) == "a"


def test_a_new_message_is_not_taken_for_one_that_is_being_processed():
    deliveries = Deliveries(10)
    deliveries.deliver("a", 7, False)
    deliveries.lost()

    assert deliveries.deliver("a", 1, False) == "a.2"


def test_failed_ones_that_others_got_are_forgotten_in_the_end():
    deliveries = Deliveries(100)
    for tag in range(1, 1001):
        deliveries.fail(deliveries.deliver(f"n{tag}", tag, False))

    assert sum(map(len, deliveries._returning.values())) == 100
    assert len(deliveries) == 0


@given(st.data())
def test_whatever_happens_a_broker_loses_only_what_was_acked(data):
    """A broker of ours, a topology that acks and fails at random, a connection that is lost."""
    deliveries = Deliveries(4)
    queue = [(name, False) for name in data.draw(st.lists(st.sampled_from("aab"), max_size=12))]
    total = len(queue)
    unacked: dict[int, str] = {}
    emitted: dict[str, str] = {}
    gone: list[str] = []
    completed: list[str] = []
    tag = 0

    def settle():
        done = deliveries.take_acknowledgements()
        for one in done.requeue:
            queue.insert(0, (unacked.pop(one), True))
        if done.ack_up_to:
            assert done.ack_up_to in unacked, "RabbitMQ closes the channel for an unknown tag"
        told = [one for one in unacked if one <= done.ack_up_to] + done.ack
        gone.extend([unacked.pop(one) for one in told])

    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(st.sampled_from(["deliver", "ack", "ack", "fail", "settle", "lose"])):
            case "deliver" if queue:
                name, redelivered = queue.pop(0)
                tag += 1
                unacked[tag] = name
                msg_id = deliveries.deliver(name, tag, redelivered)
                if msg_id is not None:
                    assert msg_id not in emitted, "an id is open once"
                    emitted[msg_id] = name
            case "ack" | "fail" as verb if emitted:
                msg_id = data.draw(st.sampled_from(sorted(emitted)))
                name = emitted.pop(msg_id)
                getattr(deliveries, verb)(msg_id)
                if verb == "ack":
                    completed.append(name)
            case "settle":
                settle()
            case "lose":
                deliveries.lost()
                queue[:0] = [(name, True) for name in unacked.values()]
                unacked.clear()
                tag = 0
    settle()

    assert len(deliveries) == len(emitted)
    assert len(queue) + len(unacked) + len(gone) == total
    assert all(gone.count(name) <= completed.count(name) for name in "ab")
