"""Kafka to Kafka, in process: topics to a topic, through crashes; each message once."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from itertools import count

import pytest

from tests.spouts.kafka_support import AT_ONCE, KINDS, values
from waterspout import faults
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import FailedException
from waterspout.state.kafka import KafkaState
from waterspout.testing import LocalRun, SimulatedCrash
from waterspout.trident import AppendRows, TridentTopology

NUMBERS = count()
POINTS = ("write.after", "transaction.before", "transaction.after", "mark.before", "settle.before")


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.install(None)


def copying(kafka, kind, source, target, size=40):
    topology = TridentTopology("copying")
    spout = KINDS[kind](
        kafka.bootstrap, source, columns=["key", "value"], max_batch_size=size, timeout_secs=5
    )
    state = KafkaState(kafka.bootstrap, topic=target, partitions=2, timeout_secs=60)
    stream = topology.new_stream("messages", spout)
    stream.partition_persist(state, AppendRows()).parallelism_hint(2)
    return topology


def read(kafka, topic):
    """Return how often anyone reads each message."""
    return Counter((m.key().decode(), m.value().decode()) for m in kafka.read_all(topic))


def wanted(total):
    return Counter({(f"k{n}", str(n)): 1 for n in range(total)})


def run_through(topology, faults_at, shared=None):
    """Run to the end, with a new driver after each crash; return how many there were."""
    shared, drivers = shared or SharedMemory(), 0
    faults.install(faults_at)
    while True:
        drivers += 1
        with suppress(SimulatedCrash):
            run = LocalRun(topology, AT_ONCE, store=MemoryCoordinationStore("copying", shared))
            try:
                run.finish(max_steps=20_000)
                return drivers
            finally:
                run.close()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_copied_once_whatever_fails_and_dies(kafka, kind):
    source, target = kafka.fresh_topic(2), f"copy-{next(NUMBERS)}"
    kafka.send(source, values(range(100)), key=lambda n: f"k{n}", partition=lambda n: n % 2)
    left = [*((point, SimulatedCrash) for point in POINTS), ("write.after", FailedException)]

    def hook(name, context):
        if left and name == left[0][0]:
            raise left.pop(0)[1](name)

    drivers = run_through(copying(kafka, kind, source, target), hook)

    assert (left, drivers) == ([], 1 + len(POINTS))
    assert read(kafka, target) == wanted(100)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1))
def test_a_storm_of_crashes_and_killed_brokers(own_kafka, kind, seed):
    rng, total = random.Random(seed), 10_000
    source, target = own_kafka.fresh_topic(4), "copy"
    own_kafka.send(source, values(range(total)), key=lambda n: f"k{n}", partition=lambda n: n % 4)
    killed = [0]

    def hook(name, context):
        chance = rng.random()
        if name in POINTS and chance < 0.05:
            raise SimulatedCrash(name)
        if name == "write.after" and chance < 0.1:
            raise FailedException(name)
        if name.startswith("transaction") and chance > 0.98 and killed[0] < 3:
            killed[0] += 1
            own_kafka.kill(1)
            own_kafka.brokers[0].launch()

    drivers = run_through(copying(own_kafka, kind, source, target, size=500), hook)

    own_kafka.await_live(1)
    assert drivers > 1
    assert read(own_kafka, target) == wanted(total)
