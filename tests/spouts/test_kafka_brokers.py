"""Three brokers, one of them down: who waits, who goes on, and every message counts once."""

from __future__ import annotations

import pytest

from tests.services.servers import await_condition
from tests.spouts.kafka_support import AT_ONCE, KINDS, counting, counts, once, values
from waterspout.coordination.events import (
    PartitionReachable,
    PartitionUnreachable,
    ServiceAway,
    ServiceBack,
)
from waterspout.errors import FailedException, OutageError
from waterspout.spouts._kafka_cluster import KafkaCluster, TopicChoice
from waterspout.spouts._kafka_plan import ranges_of
from waterspout.testing import LocalRun

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

QUICK = {"refresh_secs": 0, "timeout_secs": 2}


def stepping_until(run, holds, timeout_s=60):
    def held():
        run.step()
        return holds()

    await_condition(held, timeout_s)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_broker_that_is_down_under_a_planned_batch(kafka_of_three, tmp_path, kind):
    cluster = kafka_of_three
    topic = cluster.fresh_topic(6, replicas=1)
    cluster.send(topic, values(range(60)), partition=lambda n: n % 6)
    dead = cluster.leaders(topic)[0]
    lost = {p for p, leader in cluster.leaders(topic).items() if leader == dead}
    events, fixed = [], {}

    def kill(_):
        if not fixed:
            fixed.update(ranges_of(run.loop.ledger.emitted[1].metadata["messages"]))
            cluster.kill(dead)
            raise FailedException("the broker is gone")

    spout = KINDS[kind](cluster.bootstrap, topic, **QUICK)
    run = LocalRun(counting(spout, tmp_path / "c.db", meddle=kill), AT_ONCE, listener=events.append)
    try:
        if kind == "opaque":
            stepping_until(run, lambda: run.loop.ledger.current >= 2)
            first = run.loop.ledger.committed_metadata["messages"]
            while_down = counts(tmp_path / "c.db")
        else:
            stepping_until(run, lambda: len([e for e in events if isinstance(e, ServiceAway)]) > 2)
            while_down = counts(tmp_path / "c.db")
        cluster.start_again(dead)
        stepping_until(run, lambda: counts(tmp_path / "c.db") == once(range(60)))
        run.finish()
        last = run.loop.ledger.committed_metadata["messages"]
    finally:
        run.close()

    assert counts(tmp_path / "c.db") == once(range(60))
    if kind == "opaque":
        there = [n for n in range(60) if n % 6 not in lost]
        assert while_down == once(there)
        assert all(ranges_of(first).get((topic, p), (0, 0)) == (0, 0) for p in lost)
        away = {e.partition for e in events if isinstance(e, PartitionUnreachable)}
        back = {e.partition for e in events if isinstance(e, PartitionReachable)}
        assert away == back == {f"{topic}/{p}" for p in lost}
    else:
        assert while_down == {}
        assert ranges_of(last) == fixed  # the batch of txid 1, as it was planned
        assert run.loop.ledger.current == 2
        assert any(isinstance(event, ServiceBack) for event in events)


@pytest.mark.parametrize("kind", list(KINDS))
def test_with_replicas_another_broker_leads_and_nobody_waits_for_long(
    kafka_of_three, tmp_path, kind
):
    cluster = kafka_of_three
    topic = cluster.fresh_topic(3)
    cluster.send(topic, values(range(30)))
    leader = cluster.leaders(topic)[0]
    spout = KINDS[kind](cluster.bootstrap, topic, max_batch_size=10, **QUICK)
    run = LocalRun(counting(spout, tmp_path / "c.db"), AT_ONCE)
    try:
        stepping_until(run, lambda: run.loop.ledger.current >= 2)
        cluster.kill(leader)
        cluster.await_leader_other_than(topic, 0, leader)
        cluster.send(topic, values(range(30, 40)))
        stepping_until(run, lambda: counts(tmp_path / "c.db") == once(range(40)))
    finally:
        run.close()
        cluster.start_again(leader)


def test_the_controller_that_a_client_knows_may_die(kafka_of_three):
    cluster = kafka_of_three
    topic = cluster.fresh_topic(3)
    cluster.send(topic, values(range(30)))
    choice = TopicChoice.of(topic)
    asking = KafkaCluster(KINDS["opaque"](cluster.bootstrap, topic).servers)
    before = asking.look(*asking.topics(choice)).extents
    dead = asking.admin.list_topics(timeout=10).controller_id

    def is_told():
        try:
            return asking.look(*asking.topics(choice)).extents == before
        except OutageError:
            return False

    cluster.kill(dead)
    try:
        await_condition(is_told, 40)
    finally:
        cluster.start_again(dead)
