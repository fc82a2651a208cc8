"""Three brokers that are killed at random, a driver that is too: every message counts once.

One topic has three replicas, so that its partitions find other leaders. The other has one: what
its broker holds is away until that is back. `make soak` sends some ten thousand messages,
`make kafka-storm` two million (`WATERSPOUT_KAFKA_MESSAGES`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time

import psycopg
import pytest
import redis

from tests.services.fixtures import provided
from tests.services.kafka import KafkaCluster
from tests.services.servers import await_condition, die_with_parent
from tests.spark.kafka_child import KEYS, state_of
from tests.spark.killing import REMOTE
from waterspout.state._batched import BatchedMap

MESSAGES = int(os.environ.get("WATERSPOUT_KAFKA_MESSAGES", "60000"))
IS_FULL = MESSAGES >= 1_000_000
LIMIT_S = 3_000 if IS_FULL else 600
DRIVER_KILLS = 6 if IS_FULL else 1
SEED = int(os.environ.get("WATERSPOUT_KAFKA_SEED", "7"))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.services,
    pytest.mark.soak,
    pytest.mark.timeout(LIMIT_S + 600),
]


@pytest.fixture(scope="module")
def cluster():
    with provided("kafka", lambda: KafkaCluster(brokers=3)) as found:
        yield found


@pytest.fixture
def remote(request):
    """Where drivers have their Spark: each its own in the long storm, else all on one server."""
    return "" if IS_FULL else request.getfixturevalue("connect_server").url


class Sender:
    """Writes the messages, over both topics, while brokers come and go."""

    def __init__(self, cluster, topics, count):
        self._cluster, self._topics, self._count = cluster, topics, count
        self.sent, self.refused = 0, []
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def join(self, timeout_s):
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self.sent} of {self._count} were sent"
        assert self.refused == []

    def _send(self):
        # It waits as long as it takes: a broker may be down for a while.
        producer = self._cluster.producer(delivery_timeout_ms=900_000, linger_ms=20)
        for n in range(self._count):
            value = json.dumps({"word": f"w{n % KEYS}", "n": n})
            while True:
                try:
                    producer.produce(self._topics[n % 2], value, on_delivery=self._heard)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush(900)

    def _heard(self, error, message):
        self.sent += error is None
        self.refused += [error] if error is not None else []


class Driver:
    """The process that counts; killed and started again."""

    def __init__(self, folder, remote):
        self.folder = folder
        self.remote = remote
        self.starts = 0
        self.process = None

    def start(self):
        self.starts += 1
        (self.folder / "running").unlink(missing_ok=True)
        with (self.folder / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kafka_child", str(self.folder)],
                stdout=log, stderr=log, preexec_fn=die_with_parent,
                env={
                    **os.environ, REMOTE: self.remote,
                    "WATERSPOUT_HOME": str(self.folder / "home"),
                },
            )  # fmt: skip

    def said(self):
        return (self.folder / "driver.log").read_text(errors="replace")[-4000:]

    def await_file(self, name, timeout_s):
        def there():
            assert self.process.poll() in (None, 0), self.said()
            return (self.folder / name).exists()

        await_condition(there, timeout_s, self.said)

    def events(self, kind):
        told = self.folder / "events"
        lines = told.read_text().splitlines() if told.exists() else []
        return [line for line in lines if line.startswith(f"{kind} ")]

    def waited_for(self, service):
        return any(service in line for line in self.events("ServiceAway"))

    def kill(self):
        self.process.kill()
        self.process.wait(20)


def expected(count):
    """Return, by word, how many messages there are, and the sum of their numbers."""
    found = {f"w{k}": [0, 0] for k in range(min(KEYS, count))}
    for n in range(count):
        each = found[f"w{n % KEYS}"]
        each[0] += 1
        each[1] += n
    return {word: tuple(pair) for word, pair in found.items()}


def in_postgres(dsn):
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT word, count, total FROM counts").fetchall()
    return {word: (count, total) for word, count, total in rows}


def in_redis(url):
    from waterspout import Config
    from waterspout.trident._topology import TridentTopology  # noqa: F401

    state = state_of("redis", url)
    keys = [(f"w{k}",) for k in range(KEYS)]
    from waterspout._schema import Schema

    bound = state.bind(Schema.parse("word string"), Schema.parse("count bigint, total bigint"))
    with contextlib.closing(bound.make_state(Config(), 0, 1)) as made:
        assert isinstance(made, BatchedMap)
        found = made.multi_get(keys)
    return {key[0]: tuple(value) for key, value in zip(keys, found, strict=True) if value}


def storm(cluster, driver, sender, dice, *, waits):
    """Kill brokers and the driver, one after the other, until all is sent; return what was done.

    `waits`: the first broker comes back only when the driver has said that it waits for it.
    """
    kills, done = [], {"brokers": 0, "drivers": 0}
    wanted = ["broker", "broker", "driver", "broker"] * DRIVER_KILLS
    for what in wanted:
        before = len(driver.events("BatchCommitted"))
        await_condition(
            lambda n=before: len(driver.events("BatchCommitted")) > n or sender.sent == MESSAGES,
            LIMIT_S, driver.said,
        )  # fmt: skip
        if what == "driver":
            driver.kill()
            driver.start()
            driver.await_file("running", 200)
            done["drivers"] += 1
            continue
        node = dice.randint(1, 3)
        cluster.kill(node)
        kills.append(node)
        done["brokers"] += 1
        # Down for a while, by what the driver does meanwhile, not by the clock alone.
        until = time.monotonic() + dice.uniform(1.0, 6.0)
        await_condition(lambda u=until: time.monotonic() > u, 30)
        if waits and done["brokers"] == 1:
            await_condition(lambda: driver.waited_for("kafka"), LIMIT_S, driver.said)
        cluster.start_again(node)
    return done


def run_storm(cluster, remote, tmp_path, kind, store, address):
    dice = random.Random(SEED)
    topics = [
        cluster.fresh_topic(6, retention_bytes=-1),
        cluster.fresh_topic(6, replicas=1, retention_bytes=-1),
    ]
    settings = {
        "bootstrap": cluster.bootstrap, "topics": topics, "kind": kind, "store": store,
        "address": address, "size": max(2_000, MESSAGES // 40),
    }  # fmt: skip
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    driver = Driver(tmp_path, remote)
    driver.start()
    try:
        sender = Sender(cluster, topics, MESSAGES)
        driver.await_file("running", 200)
        done = storm(cluster, driver, sender, dice, waits=kind == "transactional")
        sender.join(LIMIT_S)
        (tmp_path / "all-sent").touch()
        (tmp_path / "calm").touch()
        driver.await_file("done", LIMIT_S)
        assert driver.process.wait(60) == 0, driver.said()
    finally:
        if driver.process.poll() is None:
            driver.kill()
    print(f"\n{kind} to {store}: {MESSAGES} messages, {done}, {driver.starts} drivers")
    assert done == {"brokers": 3 * DRIVER_KILLS, "drivers": DRIVER_KILLS}
    return driver


def test_kafka_to_postgres_is_exact_with_an_opaque_spout(
    cluster, remote, postgres_server, tmp_path
):
    dsn = postgres_server.fresh_database()

    run_storm(cluster, remote, tmp_path, "opaque", "postgres", dsn)

    assert in_postgres(dsn) == expected(MESSAGES)


def test_kafka_to_redis_is_exact_with_an_opaque_spout(cluster, remote, redis_server, tmp_path):
    redis.Redis.from_url(redis_server.url).flushall()

    run_storm(cluster, remote, tmp_path, "opaque", "redis", redis_server.url)

    assert in_redis(redis_server.url) == expected(MESSAGES)


def test_kafka_to_postgres_waits_and_is_exact_with_a_transactional_spout(
    cluster, remote, postgres_server, tmp_path
):
    dsn = postgres_server.fresh_database()

    driver = run_storm(cluster, remote, tmp_path, "transactional", "postgres", dsn)

    assert in_postgres(dsn) == expected(MESSAGES)
    assert driver.waited_for("kafka")


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_messages_are_copied_to_a_topic_once(cluster, remote, tmp_path, kind):
    target = f"copies-{kind}"

    run_storm(cluster, remote, tmp_path, kind, "kafka", target)

    copies = bytearray(MESSAGES)
    for message in cluster.messages(target):
        copies[json.loads(message.value())["n"]] += 1
    assert (sum(copies), copies.count(1)) == (MESSAGES, MESSAGES)
