"""A real ZooKeeper of one node, from the jars that PySpark brings."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.fixtures import provided
from tests.services.servers import HOST, MissingServer, Server

# A session lasts at least two ticks and ends at a tick.
TICK_MS = 200

SETTINGS = """\
tickTime={tick}
dataDir={data}
clientPort={port}
clientPortAddress={host}
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
"""


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for all tests; `fresh_root` gives each its own. Takes a second or two."""
    with provided("zookeeper", ZooKeeperServer) as server:
        yield server


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "zookeeper_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.services)


class ZooKeeperServer(Server):
    """ZooKeeper with anyone let in; what it has acknowledged survives `kill`, `wipe` does not."""

    program = "zookeeper"
    package = "default-jre-headless"

    def __init__(self) -> None:
        super().__init__()
        self.data = self.folder / "data"
        self.roots = 0
        self.bind = HOST

    @classmethod
    def find(cls) -> Path:
        """Return the folder of the jars."""
        spark = importlib.util.find_spec("pyspark")
        jars = Path(spark.origin).parent / "jars" if spark and spark.origin else Path("/nowhere")
        if not list(jars.glob("zookeeper-3*.jar")):
            raise MissingServer(f"NO ZOOKEEPER HERE: its jar is not in {jars}.")
        if shutil.which("java") is None:
            raise MissingServer("NO ZOOKEEPER HERE: it needs Java, as `java` in PATH.")
        return jars

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        settings = self.folder / "zoo.cfg"
        settings.write_text(
            SETTINGS.format(tick=TICK_MS, data=self.data, port=self.port, host=self.bind)
        )
        properties = {
            # The operating system goes on when we kill: it need not be told to write.
            "zookeeper.forceSync": "no",
            "zookeeper.preAllocSize": 1024,
            "java.io.tmpdir": self.folder,
        }
        return [
            "java",
            *("-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
            *(f"-D{name}={value}" for name, value in properties.items()),
            *("-cp", f"{self.binary}/*"),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(settings),
        ]

    def answers(self) -> bool:
        # Before it serves requests, it says so instead.
        return self.roundtrip(b"srvr").startswith(b"Zookeeper version")

    def wipe(self) -> None:
        """Lose all data, as a server does that is set up anew."""
        self.kill()
        shutil.rmtree(self.data)
        self.start()

    def close(self) -> None:
        """End it, without the time that ending in peace takes, and remove its data."""
        self.kill()
        super().close()

    def fresh_root(self) -> str:
        """Return a path that nobody has used."""
        self.roots += 1
        return f"/fresh-{self.roots}"
