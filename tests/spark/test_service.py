"""A service: supervised as by systemd, through outages, kills and a deploy, exact at the end.

`make service` runs it for fifteen minutes with outages of 40 s, `make soak` for about two.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.coordination.commanded import until
from tests.services.fixtures import provided
from tests.services.servers import PostgresServer, Server, die_with_parent
from tests.services.zookeeper import ZooKeeperServer

SECONDS = float(os.environ.get("WATERSPOUT_SERVICE_SECS", "100"))
OUTAGE_S = 40.0 if SECONDS >= 600 else 10.0

pytestmark = [
    pytest.mark.spark,
    pytest.mark.services,
    pytest.mark.soak,
    pytest.mark.timeout(SECONDS + 900),
]

REFUSED = 2

FIRST = """
import os
from waterspout.spouts.files import FileSpout
from waterspout.state.postgres import PostgresState
from waterspout.trident import Columns, Count, Split, Sum, TridentTopology, expr

topology = TridentTopology("service")
words = topology.new_stream("in", FileSpout("in", max_files=50)).each("value", Split(), "word")
words = words.each("word", expr("cast(length(word) as bigint)"), "size bigint")
words.group_by("word").persistent_aggregate(
    PostgresState.opaque("${SERVICE_DSN}", table="words"), Columns(count=Count())
)
"""
SECOND = (
    FIRST.replace("Columns(count=Count())", 'Columns(count=Count(), letters=("size", Sum()))')
    + """
words.group_by("size").persistent_aggregate(
    PostgresState.opaque("${SERVICE_DSN}", table="sizes"), Columns(words=Count())
)
"""
)


class Producer:
    """Writes a small file of words again and again, and knows what it has written."""

    def __init__(self, folder: Path, pause_s: float = 0.25) -> None:
        self._folder = folder
        self._pause_s = pause_s
        self._random = random.Random(12)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.counts: Counter[str] = Counter()
        folder.mkdir()
        self._thread.start()

    def end(self) -> Counter[str]:
        self._ended.set()
        self._thread.join()
        return self.counts

    def _write(self) -> None:
        number = 0
        while not self._ended.wait(self._pause_s):
            words = [f"w{self._random.randrange(200)}" for _ in range(50)]
            draft = self._folder / f".{number}"
            draft.write_text(" ".join(words))
            draft.rename(self._folder / f"{number:06}.txt")
            self.counts.update(words)
            number += 1


class Service:
    """Starts a command again when it fails, as systemd does with Restart=on-failure."""

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str]) -> None:
        self._folder = folder
        self._command = command
        self._environment = environment
        self.log = folder / "service.log"
        self.exits: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._wanted = True
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._wanted = False
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def await_exit(self) -> None:
        """Wait until it has ended with 0, after which it is not started again."""
        assert self._thread is not None
        self._thread.join(120)
        assert not self._thread.is_alive()

    def kill_driver(self) -> None:
        exits = len(self.exits)
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        until(lambda: len(self.exits) > exits)

    def _supervise(self) -> None:
        while self._wanted:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._folder,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            code = self._process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what it leaves behind
            self.exits.append(code)
            if code == 0:
                return
            time.sleep(1.0)  # systemd's RestartSec


class World:
    """The servers, the service, and what is to be seen of it."""

    def __init__(self, folder: Path, postgres: PostgresServer, zookeeper: ZooKeeperServer) -> None:
        self.postgres, self.zookeeper = postgres, zookeeper
        self._dsn = postgres.fresh_database()
        self._folder = folder
        self._options = ["-c", f"transactional.zookeeper.servers=[{zookeeper.address}]"]
        self._environment = {
            **os.environ,
            "SERVICE_DSN": self._dsn,
            "WATERSPOUT_HOME": str(folder / "home"),
        }
        run = ["run", "service.py", "--log-file", "spark.log", *self._options]
        run += ["-c", "max_spout_pending=2", "-c", "lease_secs=10"]
        self.service = Service(folder, self._waterspout(*run), self._environment)

    def deploy(self, source: str) -> None:
        (self._folder / "service.py").write_text(source)

    def command(self, *arguments: str) -> dict[str, Any]:
        """Give a command as another terminal does."""
        done = subprocess.run(
            self._waterspout(*arguments, "--json", *self._options),
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def table(self, statement: str) -> list[tuple[Any, ...]]:
        """Return rows of the database; none while it is away or has no such table."""
        try:
            with psycopg.connect(self._dsn, connect_timeout=2) as connection:
                return connection.execute(statement).fetchall()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return []

    def counts(self) -> dict[str, int]:
        return dict(self.table("SELECT word, count FROM words"))

    def goes_on(self) -> None:
        """Wait until more is counted than now."""
        before = sum(self.counts().values())

        def more() -> bool:
            assert REFUSED not in self.service.exits, "it would be started in vain again and again"
            return sum(self.counts().values()) > before

        until(more, timeout_s=240)

    def away(self, server: Server, seconds: float) -> None:
        """Kill a server and start it again when its time has passed."""
        server.kill()
        time.sleep(seconds)
        server.start()
        self.goes_on()

    @staticmethod
    def _waterspout(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "waterspout.cli", *arguments]


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    with (
        provided("postgres", PostgresServer) as postgres,
        provided("zookeeper", ZooKeeperServer) as zookeeper,
    ):
        world = World(tmp_path, postgres, zookeeper)
        try:
            yield world
        finally:
            world.service.stop()
            print(world.service.log.read_text()[-5000:])


def test_a_service_is_exact_after_outages_kills_and_a_deploy(world, tmp_path):
    world.deploy(FIRST)
    producer = Producer(tmp_path / "in")
    world.service.start()
    world.goes_on()
    began = time.monotonic()
    steps: list[Callable[[], object]] = [
        lambda: world.away(world.postgres, OUTAGE_S),
        world.service.kill_driver,
        lambda: world.away(world.zookeeper, OUTAGE_S),
        lambda: before.update(redeploy(world)),
        lambda: world.away(world.postgres, OUTAGE_S),
        world.service.kill_driver,
    ]
    before: dict[str, int] = {}
    for number, step in enumerate(steps, 1):
        time.sleep(max(0.0, began + SECONDS * number / 7 - time.monotonic()))
        step()
        world.goes_on()
    time.sleep(max(0.0, began + SECONDS - time.monotonic()))
    counts = producer.end()
    until(lambda: sum(world.counts().values()) >= sum(counts.values()), timeout_s=240)
    killed = world.command("kill", "service", "-w", "60")
    world.service.await_exit()

    assert world.counts() == counts
    since = counts - Counter(before)
    letters = dict(world.table("SELECT word, letters FROM words WHERE letters IS NOT NULL"))
    assert letters == {word: len(word) * n for word, n in since.items()}
    sizes: Counter[int] = Counter()
    for word, n in since.items():
        sizes[len(word)] += n
    assert dict(world.table("SELECT size, words FROM sizes")) == sizes
    # Only who was killed was started again: everything else was waited for.
    assert world.service.exits == [-signal.SIGKILL, 0, -signal.SIGKILL, 0]
    batches, seconds = killed["last_txid"], time.monotonic() - began
    print(f"service: {sum(counts.values()):,} words in {batches:,} batches, {seconds:.0f} s")


def redeploy(world: World) -> dict[str, int]:
    """End the service, start it with a column and a state more, return what it had counted."""
    killed = world.command("kill", "service", "-w", "60")
    assert killed["emitted_again"] == []
    world.service.await_exit()
    before = world.counts()
    world.deploy(SECOND)
    world.service.start()
    return before
