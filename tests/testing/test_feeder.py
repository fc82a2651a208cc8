"""The feeder and its tracker, as a test of a user's own would use them."""

from __future__ import annotations

import pickle
import threading

import pytest

from tests.waves.driving import Do, Driven, Fails, Record, forget_all, seen
from waterspout.testing import AckFailTracker, FeederSpout
from waterspout.topology import TopologyBuilder


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()


def fed(feeder: FeederSpout, bolt, tasks: int = 1, **options) -> Driven:
    builder = TopologyBuilder()
    builder.set_spout("feeder", feeder, tasks)
    builder.set_bolt("bolt", bolt).shuffle_grouping("feeder")
    return Driven(builder.create_topology("fed"), **options)


def test_messages_come_out_in_the_order_in_which_they_were_fed():
    feeder = FeederSpout(["word", "n"])
    for n in range(200):
        feeder.feed([f"word {n}", n], msg_id=n)
    fed(feeder, Record("out")).until_idle()

    assert [values for _, values in seen("out")] == [(f"word {n}", n) for n in range(200)]
    assert feeder.tracker.num_acks == 200


def test_a_message_may_be_fed_while_the_topology_runs():
    feeder = FeederSpout("n")
    driven = fed(feeder, Record("out"))
    driven.until_idle()
    feeder.feed([1], msg_id=1)
    driven.until_idle()

    assert feeder.tracker.is_acked(1)
    assert not feeder.tracker.is_acked(2)


def test_without_an_id_a_message_is_not_tracked():
    feeder = FeederSpout("n")
    feeder.feed([1])
    fed(feeder, Record("out")).until_idle()

    assert len(seen("out")) == 1
    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {})


def test_a_message_that_failed_is_not_emitted_again():
    feeder = FeederSpout("n")
    feeder.feed([1], msg_id="m")
    fed(feeder, Fails("out", {1: 1})).until_idle()

    assert (seen("out"), seen("out, tried")) == ([], [1])
    assert feeder.tracker.fails == {"m": 1}
    assert feeder.tracker.is_failed("m")
    assert feeder.tracker.num_fails == 1


def test_a_feeder_that_replays_emits_it_until_it_is_acked():
    feeder = FeederSpout("n", replay=True)
    feeder.feed([1], msg_id="m")
    fed(feeder, Fails("out", {1: 3}), max_replays=5).until_idle()

    assert (seen("out"), seen("out, tried")) == ([1], [1, 1, 1, 1])
    assert (feeder.tracker.acks, feeder.tracker.fails) == ({"m": 1}, {"m": 3})


def test_several_tasks_share_one_feed():
    feeder = FeederSpout("n")
    for n in range(500):
        feeder.feed([n], msg_id=n)
    fed(feeder, Record("out"), tasks=3).until_idle()

    assert sorted(values[0] for _, values in seen("out")) == list(range(500))
    assert feeder.tracker.acks == dict.fromkeys(range(500), 1)


def test_a_copy_shares_the_feed():
    feeder = FeederSpout("n")
    copy = pickle.loads(pickle.dumps(feeder))
    copy.feed([1], msg_id=1)
    fed(feeder, Record("out")).until_idle()

    assert copy.tracker.acks == {1: 1}


def test_two_feeders_do_not_meet():
    one, two = FeederSpout("n"), FeederSpout("n")
    one.feed([1], msg_id=1)
    fed(one, Record("out")).until_idle()

    assert two.tracker.acks == {}


def test_what_failed_once_may_be_acked_later():
    tracker = AckFailTracker()
    tracker.fail("m")
    tracker.ack("m")

    assert (tracker.is_acked("m"), tracker.is_failed("m")) == (True, True)
    assert (tracker.num_acks, tracker.num_fails) == (1, 1)


def test_looking_at_an_id_does_not_count_it():
    tracker = AckFailTracker()

    assert not tracker.is_acked("m")
    assert tracker.acks == {}


def test_threads_may_ask_while_acks_come():
    tracker = AckFailTracker()
    threads = [
        threading.Thread(target=lambda: [tracker.ack(n) for n in range(1000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert tracker.num_acks <= 4000
    for thread in threads:
        thread.join()

    assert tracker.acks == dict.fromkeys(range(1000), 4)


def test_an_open_tree_is_neither_acked_nor_failed():
    feeder = FeederSpout("n")
    feeder.feed([1], msg_id=1)
    driven = fed(feeder, Do(lambda bolt, tuple: None))
    driven.step(5)

    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {})
    assert not driven.loop.is_idle
