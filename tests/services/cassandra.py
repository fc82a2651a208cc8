"""A real Cassandra of one node, from the jars that `scripts/install_cassandra` fetches."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

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
from waterspout.state.cassandra._session import close_all

START_TIMEOUT_S = 120.0
JAVAS = (11, 17)

SETTINGS = """\
cluster_name: waterspout
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
listen_address: {host}
rpc_address: {host}
native_transport_port: {port}
storage_port: {storage}
ssl_storage_port: {ssl_storage}
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "{host}:{storage}"
auto_snapshot: false
auto_bootstrap: false
commitlog_sync: batch
commitlog_segment_size: 8MiB
memtable_heap_space: 96MiB
memtable_offheap_space: 32MiB
key_cache_size: 8MiB
concurrent_reads: 16
concurrent_writes: 16
concurrent_counter_writes: 2
read_request_timeout: 10s
write_request_timeout: 10s
cas_contention_timeout: 10s
data_file_directories: ["{folder}/data"]
commitlog_directory: "{folder}/commitlog"
saved_caches_directory: "{folder}/saved"
hints_directory: "{folder}/hints"
cdc_raw_directory: "{folder}/cdc"
"""
LOGGING = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
# What Cassandra's own jvm17-server.options lets it see of Java.
EXPORTS = {
    "java.base": ("jdk.internal.misc", "jdk.internal.ref", "sun.nio.ch"),
    "java.management.rmi": ("com.sun.jmx.remote.internal.rmi",),
    "java.rmi": ("sun.rmi.registry", "sun.rmi.server", "sun.rmi.transport"),
    "java.sql": ("java.sql",),
    "jdk.unsupported": ("sun.misc",),
}
OPENS = {
    "java.base": (
        *("java.io", "java.lang", "java.lang.module", "java.lang.reflect", "java.math"),
        *("java.net", "java.nio", "java.util", "java.util.concurrent"),
        *("java.util.concurrent.atomic", "jdk.internal.loader", "jdk.internal.math"),
        *("jdk.internal.module", "jdk.internal.ref", "jdk.internal.reflect"),
        *("jdk.internal.util.jar", "sun.nio.ch"),
    ),
    "jdk.management": ("com.sun.management.internal",),
}


@pytest.fixture(scope="session")
def cassandra_server() -> Iterator[CassandraServer]:
    """A Cassandra for all tests; `fresh_keyspace` gives each its own. Takes 10 s or more."""
    with provided("cassandra", CassandraServer) as server:
        yield server


@pytest.fixture(scope="module")
def cassandra_sessions() -> Iterator[None]:
    """See to it that no thread of a module's sessions goes on in other modules' tests."""
    yield
    close_all()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cassandra_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.services)


class CassandraServer(Server):
    """Cassandra with anyone let in; what it has acknowledged survives `kill`.

    With `commitlog_sync: periodic`, its default, it does not: the last moments are lost.
    """

    program = "cassandra"
    package = "maven"

    def __init__(self) -> None:
        super().__init__()
        self.storage, self.ssl_storage = free_port(), free_port()
        self.keyspaces = 0

    @classmethod
    def find(cls) -> Path:
        """Return the folder of the jars."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        found = sorted((cache / "waterspout" / "cassandra").glob("*/cassandra-all-*.jar"))
        if not found:
            raise MissingServer(
                "NO CASSANDRA HERE: its jars were not fetched. Run `scripts/install_cassandra`."
            )
        java = shutil.which("java")
        said = subprocess.run([java or "false", "-version"], capture_output=True, check=False)
        version = re.search(r'version "(\d+)', said.stderr.decode(errors="replace"))
        if version is None or int(version[1]) not in JAVAS:
            raise MissingServer(f"NO CASSANDRA HERE: it needs Java {JAVAS}, as `java` in PATH.")
        return found[-1].parent

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def command(self) -> list[str]:
        settings, logging = self.folder / "cassandra.yaml", self.folder / "logback.xml"
        ports = {"storage": self.storage, "ssl_storage": self.ssl_storage, "port": self.port}
        settings.write_text(SETTINGS.format(host=HOST, folder=self.folder, **ports))
        logging.write_text(LOGGING)
        properties = {
            "jdk.attach.allowAttachSelf": "true",
            "cassandra.config": settings.as_uri(),
            "cassandra.storagedir": self.folder,
            "cassandra-foreground": "yes",
            "cassandra.ring_delay_ms": 0,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "logback.configurationFile": logging,
            "java.io.tmpdir": self.folder,
        }
        (agent,) = self.binary.glob("jamm-*.jar")
        return [
            "java",
            *("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"--add-exports={m}/{p}=ALL-UNNAMED" for m, ps in EXPORTS.items() for p in ps),
            *(f"--add-opens={m}/{p}=ALL-UNNAMED" for m, ps in OPENS.items() for p in ps),
            *(f"-D{name}={value}" for name, value in properties.items()),
            f"-javaagent:{agent}",
            *("-cp", f"{self.binary}/*"),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def answers(self) -> bool:
        # OPTIONS of protocol 4; what comes back begins with the version, or with an error's.
        return self.roundtrip(b"\x04\x00\x00\x00\x05\x00\x00\x00\x00")[:1] in (b"\x84", b"\x85")

    def await_answer(self) -> None:
        def answers() -> bool:
            if not self.running:
                raise ServerFailed(f"Cassandra on port {self.port} ended:\n{self.said()}")
            try:
                return self.answers()
            except OSError:
                return False

        await_condition(answers, START_TIMEOUT_S, self.said)

    def close(self) -> None:
        """End it without the seconds that it takes to end in peace, and remove its data."""
        self.kill()
        super().close()

    def fresh_keyspace(self) -> str:
        """Create an empty keyspace and return its name."""
        self.keyspaces += 1
        name = f"fresh_{self.keyspaces}"
        self.run(
            f"CREATE KEYSPACE {name} WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        return name

    def run(self, *statements: str) -> list[list[tuple]]:
        """Run statements as someone from outside would, and return the rows of each."""
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import RoundRobinPolicy
        from cassandra.query import tuple_factory

        profile = ExecutionProfile(
            RoundRobinPolicy(), row_factory=tuple_factory, request_timeout=30
        )
        with Cluster(
            [self.address],
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            schema_metadata_enabled=False,
            protocol_version=4,
        ) as cluster:
            session = cluster.connect()
            return [list(session.execute(statement)) for statement in statements]
