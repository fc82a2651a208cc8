"""Real Kafka brokers in KRaft mode, from the jars that `scripts/install_kafka` fetches.

`KafkaBroker` is one process. `KafkaCluster` has one of them or three, each broker and controller
at once: of three, one may be down and the others go on. A broker is killed (`kill`) and started
again (`start`) with its port and its data. Where a test looks at Kafka from outside, it does so
through confluent-kafka; nothing here is waterspout's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.services.fixtures import provided
from tests.services.servers import (
    HOST,
    MissingServer,
    Server,
    ServerFailed,
    await_condition,
    free_port,
)

START_TIMEOUT_S = 60.0
ADMIN_TIMEOUT_S = 30.0
OLDEST_JAVA = 17

# Small and quick: a dead broker is noticed within a second and a half, logs are rolled, compacted
# and shortened at once, and what a broker keeps in memory is little.
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 3,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 600_000,
    "broker.heartbeat.interval.ms": 250,
    "broker.session.timeout.ms": 1500,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "controller.quorum.request.timeout.ms": 1000,
    "replica.lag.time.max.ms": 2000,
    "controlled.shutdown.enable": "false",
    "num.network.threads": 2,
    "num.io.threads": 2,
    "num.replica.fetchers": 1,
    "background.threads": 2,
    "num.recovery.threads.per.data.dir": 1,
    "log.initial.task.delay.ms": 100,
    "log.retention.ms": -1,  # a test may write messages of any time
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 0,
    "log.cleaner.threads": 1,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.dedupe.buffer.size": 4_000_000,
    "log.cleaner.io.buffer.size": 65_536,
    "log.index.size.max.bytes": 262_144,
}
LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %-5p %d{HH:mm:ss.SSS} %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""
JAVA = (
    *("-Xms96m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "-Djava.awt.headless=true",
)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker for all tests; `fresh_topic` gives each its own. Takes 5 s or more."""
    with provided("kafka", KafkaCluster) as cluster:
        yield cluster


@pytest.fixture
def own_kafka() -> Iterator[KafkaCluster]:
    """One broker for a test that kills it."""
    with provided("kafka", KafkaCluster) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka_of_three() -> Iterator[KafkaCluster]:
    """Three brokers for the tests of a module; who kills one starts it again."""
    with provided("kafka", lambda: KafkaCluster(brokers=3)) as cluster:
        yield cluster


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"kafka", "own_kafka", "kafka_of_three"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)


class KafkaBroker(Server):
    """One broker and controller; what it has acknowledged survives `kill`, the disk permitting."""

    program = "kafka"
    package = "maven"

    def __init__(self, node: int, cluster: KafkaCluster) -> None:
        super().__init__()
        self.node = node
        self.cluster = cluster
        self.controller_port = free_port()

    @classmethod
    def find(cls) -> Path:
        """Return the folder of the jars."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        found = sorted((cache / "waterspout" / "kafka").glob("*/kafka_2.13-*.jar"))
        if not found:
            raise MissingServer(
                "NO KAFKA HERE: its jars were not fetched. Run `make kafka`, which gets them from "
                "the repository that Maven is set up to use."
            )
        java = shutil.which("java")
        said = subprocess.run([java or "false", "-version"], capture_output=True, check=False)
        version = re.search(r'version "(\d+)', said.stderr.decode(errors="replace"))
        if version is None or int(version[1]) < OLDEST_JAVA:
            raise MissingServer(f"NO KAFKA HERE: it needs Java {OLDEST_JAVA}, as `java` in PATH.")
        return found[-1].parent

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def write_settings(self) -> Path:
        replicas = len(self.cluster.brokers)
        settings = {
            **SETTINGS,
            "node.id": self.node,
            "controller.quorum.voters": ",".join(
                f"{broker.node}@{HOST}:{broker.controller_port}" for broker in self.cluster.brokers
            ),
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": self.folder / "data",
            "default.replication.factor": replicas,
            "min.insync.replicas": min(2, replicas),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": min(2, replicas),
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": min(2, replicas),
            **self.cluster.settings,
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self.folder / "log4j2.properties").write_text(LOGGING)
        return path

    def java(self, main: str, *arguments: object) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        temporary = f"-Djava.io.tmpdir={self.folder}"
        words = ["java", *JAVA, logging, temporary, "-cp", f"{self.binary}/*", main]
        return [*words, *map(str, arguments)]

    def command(self) -> list[str]:
        return self.java("kafka.Kafka", self.folder / "server.properties")

    def format(self) -> subprocess.Popen[bytes]:
        """Begin to write what a new broker must find in its folder."""
        tool = self.java(
            *("kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster.id}"),
            *("-c", self.write_settings()),
        )
        with self.log.open("ab") as log:
            return subprocess.Popen(
                tool, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.identity()
            )

    def answers(self) -> bool:
        # ApiVersions, version 0, of a client without a name: what comes back has our number.
        found = self.roundtrip(bytes.fromhex("0000000a0012000000000007ffff"))
        return found[4:8] == bytes.fromhex("00000007")

    def await_answer(self) -> None:
        def answers() -> bool:
            if not self.running:
                raise ServerFailed(f"broker {self.node} on port {self.port} ended:\n{self.said()}")
            try:
                return self.answers()
            except OSError:
                return False

        await_condition(answers, START_TIMEOUT_S, self.said)

    def close(self) -> None:
        """End it without the time that ending in peace takes, and remove its data."""
        self.kill()
        super().close()


class KafkaCluster:
    """One broker or three, and what tests do with them. Further settings go to every broker."""

    def __init__(self, brokers: int = 1, **settings: object) -> None:
        KafkaBroker.find()
        self.id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.brokers: list[KafkaBroker] = []
        for node in range(1, brokers + 1):
            self.brokers.append(KafkaBroker(node, self))
        self.topics = 0
        self._admin: Any = None
        self._sender: Any = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> Self:
        """Start every broker that does not run, and wait until all of them serve."""
        new = [broker for broker in self.brokers if broker.process is None]
        for broker, formatting in [(broker, broker.format()) for broker in new]:
            if formatting.wait(START_TIMEOUT_S):
                raise ServerFailed(f"a broker's folder cannot be made:\n{broker.said()}")
        down = [broker for broker in self.brokers if not broker.running]
        for broker in down:
            broker.launch()
        for broker in down:
            broker.await_answer()
        self.await_live(len(self.brokers))
        return self

    def await_live(self, count: int) -> None:
        """Wait until so many brokers are part of the cluster, as a client sees it."""
        await_condition(lambda: len(self.live()) == count, START_TIMEOUT_S, self.said)

    def live(self) -> set[int]:
        """Return the numbers of the brokers that the cluster counts as alive."""
        from confluent_kafka import KafkaException

        try:
            return set(self.admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return set()

    def said(self) -> str:
        return "\n".join(broker.said() for broker in self.brokers)

    def kill(self, node: int) -> None:
        """Kill a broker with SIGKILL; `start_again` brings it back with its data."""
        self.brokers[node - 1].kill()

    def start_again(self, node: int) -> None:
        """Start a broker that was killed, and wait until the cluster counts it in."""
        self.brokers[node - 1].start()
        await_condition(lambda: node in self.live(), START_TIMEOUT_S, self.said)

    def close(self) -> None:
        self._admin = self._sender = None
        for broker in self.brokers:
            broker.close()

    @property
    def admin(self) -> Any:
        """A client that is kept: to make one takes a connection to each broker."""
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            quiet = {"bootstrap.servers": self.bootstrap, "log_level": 0}
            self._admin = AdminClient({**quiet, "reconnect.backoff.max.ms": 500})
        return self._admin

    def fresh_topic(
        self, partitions: int = 1, replicas: int | None = None, **config: object
    ) -> str:
        """Make an empty topic and return its name."""
        self.topics += 1
        name = f"fresh-{self.topics}"
        self.create_topic(name, partitions, replicas, **config)
        return name

    def create_topic(
        self, name: str, partitions: int = 1, replicas: int | None = None, **config: object
    ) -> None:
        """Make a topic, and wait until every partition has a leader."""
        from confluent_kafka.admin import NewTopic

        copies = len(self.brokers) if replicas is None else replicas
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        if copies == 1:
            settings.setdefault("min.insync.replicas", "1")
        made = NewTopic(name, partitions, copies, config=settings)
        await_condition(lambda: self._makes(made), ADMIN_TIMEOUT_S, self.said)
        self.await_leaders(name, partitions)

    def _makes(self, topic: Any) -> bool:
        """Make a topic; False while no broker is heard of, as where the machine is busy."""
        from confluent_kafka import KafkaException

        try:
            _done(self.admin.create_topics([topic], operation_timeout=ADMIN_TIMEOUT_S))
        except KafkaException as error:
            if "fenced" not in str(error):
                raise
            return False
        return True

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until nobody has heard of it."""
        _done(self.admin.delete_topics([name], operation_timeout=ADMIN_TIMEOUT_S))
        self._sender = None
        await_condition(lambda: name not in self.topic_names(), ADMIN_TIMEOUT_S, self.said)

    def recreate_topic(self, name: str, partitions: int = 1, **config: object) -> None:
        """Delete a topic and make it again, under the same name and with nothing in it."""
        self.delete_topic(name)
        self.create_topic(name, partitions, **config)

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, so that it has `total`."""
        from confluent_kafka.admin import NewPartitions

        _done(self.admin.create_partitions([NewPartitions(name, total)]))
        self._sender = None  # it would not know of them for a while
        self.await_leaders(name, total)

    def topic_names(self) -> set[str]:
        return set(self.admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics)

    def leaders(self, name: str) -> dict[int, int]:
        """Return the broker that leads each partition; -1 where there is none."""
        found = self.admin.list_topics(name, timeout=ADMIN_TIMEOUT_S).topics[name]
        return {number: part.leader for number, part in found.partitions.items()}

    def await_leaders(self, name: str, partitions: int) -> None:
        """Wait until a topic has so many partitions, each with a leader."""

        def led() -> bool:
            leaders = self.leaders(name)
            return len(leaders) == partitions and all(leader > 0 for leader in leaders.values())

        await_condition(led, ADMIN_TIMEOUT_S, self.said)

    def await_leader_other_than(self, name: str, partition: int, node: int) -> int:
        """Wait until another broker leads a partition; return its number."""
        await_condition(
            lambda: self.leaders(name)[partition] not in (node, -1), ADMIN_TIMEOUT_S, self.said
        )
        return self.leaders(name)[partition]

    def give_back(self, name: str, partition: int, node: int) -> None:
        """Give a partition back to the leader that it had when it was made, and wait for that.

        A broker that was away is elected only when it has caught up.
        """
        from confluent_kafka import ElectionType, TopicPartition

        def leads() -> bool:
            wanted = [TopicPartition(name, partition)]
            self.admin.elect_leaders(ElectionType.PREFERRED, wanted).result(ADMIN_TIMEOUT_S)
            return self.leaders(name)[partition] == node

        await_condition(leads, ADMIN_TIMEOUT_S, self.said)

    def drop_before(self, name: str, offsets: Mapping[int, int]) -> None:
        """Let partitions begin at these offsets, as if all before had outlived its retention."""
        from confluent_kafka import TopicPartition

        wanted = [TopicPartition(name, partition, at) for partition, at in offsets.items()]
        _done(self.admin.delete_records(wanted))

    def ends(self, name: str) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition, and the one after the last."""
        with _consumer(self.bootstrap) as consumer:
            from confluent_kafka import TopicPartition

            return {
                number: consumer.get_watermark_offsets(TopicPartition(name, number), timeout=10)
                for number in self.leaders(name)
            }

    def producer(self, **options: object) -> Any:
        """Return a producer that is acknowledged by all replicas, and retries."""
        from confluent_kafka import Producer

        given = {name.replace("_", "."): value for name, value in options.items()}
        base = {"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 2, "log_level": 0}
        return Producer({**base, "enable.idempotence": True, **given})

    def send(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        *,
        key: Callable[[int], bytes | str | None] = lambda _: None,
        partition: Callable[[int], int] | int = -1,
        headers: Sequence[tuple[str, bytes]] | None = None,
        timestamp: Callable[[int], int] = lambda _: 0,
    ) -> int:
        """Write messages, and wait until all of them are acknowledged; return how many."""
        if self._sender is None:  # kept: it takes a second to be given its number
            self._sender = self.producer()
        producer, refused = self._sender, []
        count = 0

        def hear(error: Any, _: Any) -> None:
            refused.extend([error] if error is not None else [])

        for count, value in enumerate(values, 1):
            where = partition(count - 1) if callable(partition) else partition
            more = {} if where < 0 else {"partition": where}
            _put(
                producer, topic, value, key=key(count - 1), headers=headers,
                timestamp=timestamp(count - 1), on_delivery=hear, **more,
            )  # fmt: skip
        left = producer.flush(60)
        if left or refused:
            told = f"{left} messages were not acknowledged; refused: {refused[:3]}"
            raise ServerFailed(f"{told}\n{self.said()}")
        return count

    def send_in_transaction(
        self, topic: str, values: Iterable[bytes | str], *, partition: int = 0, commit: bool = True
    ) -> None:
        """Write messages in a transaction, which ends well, or is aborted when all are there."""
        producer = self.producer(transactional_id=f"test-{uuid.uuid4()}")
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            _put(producer, topic, value, partition=partition)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def read_all(self, topic: str, *, isolation: str = "read_committed") -> list[Any]:
        """Return every message of a topic, as a client that knows nothing of waterspout sees it."""
        return list(self.messages(topic, isolation=isolation))

    def messages(self, topic: str, *, isolation: str = "read_committed") -> Iterator[Any]:
        """Give what `read_all` returns, message by message."""
        from confluent_kafka import TopicPartition

        with _consumer(self.bootstrap, isolation) as consumer:
            for number in self.leaders(topic):
                consumer.assign([TopicPartition(topic, number, 0)])
                until = time.monotonic() + ADMIN_TIMEOUT_S
                while True:
                    messages = consumer.consume(10_000, 1.0)
                    yield from (message for message in messages if message.error() is None)
                    if any(_is_end(message) for message in messages):
                        break
                    if time.monotonic() > until:
                        raise ServerFailed(f"{topic}/{number} does not end")


def _put(producer: Any, topic: str, value: Any, **options: Any) -> None:
    while True:
        try:
            return producer.produce(topic, value, **options)
        except BufferError:
            producer.poll(0.1)


@contextmanager
def _consumer(bootstrap: str, isolation: str = "read_committed") -> Iterator[Any]:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "looking-on",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "fetch.wait.max.ms": 20,
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _is_end(message: Any) -> bool:
    from confluent_kafka import KafkaError

    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(ADMIN_TIMEOUT_S)
