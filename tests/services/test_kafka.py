"""The brokers that tests start: they serve, survive, and do what tests want of them."""

from __future__ import annotations

import pytest

from tests.services.kafka import KafkaCluster
from tests.services.servers import MissingServer


@pytest.mark.soak
def test_a_broker_does_what_tests_ask_of_it(kafka):
    topic = kafka.fresh_topic(2)
    assert kafka.send(topic, [b"a", b"b", None], partition=0, key=lambda n: f"k{n}") == 3
    kafka.send_in_transaction(topic, [b"aborted"], partition=1, commit=False)
    kafka.send_in_transaction(topic, [b"committed"], partition=1)

    found = [(m.partition(), m.offset(), m.key(), m.value()) for m in kafka.read_all(topic)]
    everything = kafka.read_all(topic, isolation="read_uncommitted")

    assert found == [
        (0, 0, b"k0", b"a"),
        (0, 1, b"k1", b"b"),
        (0, 2, b"k2", None),
        (1, 2, None, b"committed"),  # 0 was aborted, 1 is the mark of that
    ]
    assert [m.value() for m in everything] == [b"a", b"b", None, b"aborted", b"committed"]
    kafka.add_partitions(topic, 3)
    kafka.drop_before(topic, {0: 2})
    assert kafka.ends(topic) == {0: (2, 3), 1: (0, 4), 2: (0, 0)}
    kafka.recreate_topic(topic)
    assert kafka.ends(topic) == {0: (0, 0)}


@pytest.mark.soak
def test_a_killed_broker_comes_back_with_its_data(own_kafka):
    topic = own_kafka.fresh_topic()
    own_kafka.send(topic, [b"a", b"b"])
    before = own_kafka.bootstrap

    own_kafka.kill(1)
    own_kafka.start_again(1)

    assert [m.value() for m in own_kafka.read_all(topic)] == [b"a", b"b"]
    assert own_kafka.bootstrap == before


@pytest.mark.soak
def test_two_of_three_brokers_go_on_and_another_one_leads(kafka_of_three):
    topic = kafka_of_three.fresh_topic(3)
    leader = kafka_of_three.leaders(topic)[0]

    kafka_of_three.kill(leader)
    heir = kafka_of_three.await_leader_other_than(topic, 0, leader)
    kafka_of_three.send(topic, [b"while one is down"], partition=0)
    kafka_of_three.start_again(leader)

    assert heir != leader
    assert [m.value() for m in kafka_of_three.read_all(topic)] == [b"while one is down"]
    kafka_of_three.give_back(topic, 0, leader)


def test_without_its_jars_the_reason_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(MissingServer, match=r"NO KAFKA HERE.*make kafka"):
        KafkaCluster()
