"""Kafka to Kafka on real Spark: workers killed in mid transaction, and the sink of foreachBatch."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count

import pytest

from tests.spouts.kafka_support import values
from tests.trident.support import finish
from waterspout import Config, faults
from waterspout.faults import Fault, FaultPlan
from waterspout.sinks import exactly_once
from waterspout.spouts.kafka import OpaqueKafkaSpout
from waterspout.state.kafka import KafkaState
from waterspout.trident import AppendRows, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

NUMBERS = count()
CONFIG = Config(retry_backoff_millis=5, idle_poll_millis=20, state_partitions=2, commit_in="tasks")


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.install(None)


@pytest.mark.soak
def test_workers_that_die_in_mid_transaction_leave_each_message_once(spark, kafka, tmp_path):
    source, target = kafka.fresh_topic(2), f"spark-copy-{next(NUMBERS)}"
    kafka.send(source, values(range(300)), key=lambda n: f"k{n}", partition=lambda n: n % 2)
    topology = TridentTopology("copying")
    spout = OpaqueKafkaSpout(kafka.bootstrap, source, columns=["key", "value"], max_batch_size=150)
    state = KafkaState(kafka.bootstrap, topic=target, partitions=2)
    topology.new_stream("messages", spout).partition_persist(state, AppendRows())
    tokens = [tmp_path / name for name in ("before", "after", "failed")]
    faults.install(
        FaultPlan(
            [
                Fault(
                    "transaction.before",
                    "kill",
                    where={"txid": 1, "partition": 1},
                    token=str(tokens[0]),
                ),
                Fault(
                    "transaction.after",
                    "kill",
                    where={"txid": 2, "partition": 0},
                    token=str(tokens[1]),
                ),
                Fault(
                    "write.after", "fail", where={"txid": 2, "partition": 1}, token=str(tokens[2])
                ),
            ]
        )
    )

    finish(topology, spark, CONFIG)

    found = Counter((m.key().decode(), m.value().decode()) for m in kafka.read_all(target))
    assert found == Counter({(f"k{n}", str(n)): 1 for n in range(300)})
    assert [token.exists() for token in tokens] == [True, True, True]


def test_a_sink_appends_and_a_batch_that_is_repeated_changes_nothing(spark, kafka):
    target = f"spark-sink-{next(NUMBERS)}"
    sink = exactly_once(
        KafkaState(kafka.bootstrap, topic=target, partitions=1, key="id"), append=True
    )
    frames = [spark.range(n, n + 20).repartition(3) for n in (0, 100)]

    for number, frame in [(0, frames[0]), (0, frames[0].coalesce(1)), (1, frames[1])]:
        sink(frame, number)

    found = Counter(json.loads(message.value())["id"] for message in kafka.read_all(target))
    assert found == Counter([*range(20), *range(100, 120)])
