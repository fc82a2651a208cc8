"""Real servers on free ports of the loopback, each with a temporary folder of its own.

A server dies with the thread that started it: start it from the main thread of a test run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.01
STARTS_MAX = 5
READ_BYTES = 16 * 1024
SLOTS = 16384
PR_SET_PDEATHSIG = 1

# Below the ports that Linux gives to outgoing connections: one of those could take the port of
# a server between its kill and its restart.
PORTS = range(15000, 22000)
CLUSTER_BUS_OFFSET = 10000


class MissingServer(Exception):
    """Raised when a server cannot be had on this machine."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ServerFailed(Exception):
    """Raised when a server that is there does not start, or does not end."""


class Server(ABC):
    """A process of ours that answers on `host` and `port`, and can be killed and started again."""

    program: ClassVar[str]
    package: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self.host = HOST
        self.port = free_port()
        self.binary = self.find()
        self.folder = Path(tempfile.mkdtemp(prefix=f"waterspout-{self.program}-"))
        self.log = self.folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        # Some refuse to run as root, or give up what root may do and with it the death signal.
        self.user: str | None = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    @classmethod
    def find(cls) -> Path:
        """Return the program; raise MissingServer if there is none."""
        found = shutil.which(cls.program)
        if found is None:
            raise MissingServer(missing(cls.program, cls.package))
        return Path(found)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command line, for the present port."""

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether the server is ready for clients; OSError counts as no."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> Self:
        """Start and wait until it answers; do nothing if it runs."""
        if self.running:
            return self
        first = self.process is None
        for left in reversed(range(STARTS_MAX)):
            self.launch()
            try:
                self.await_answer()
                return self
            except ServerFailed:
                self.kill()
                # Someone else may have taken the port before we did. Later it has to stay.
                if not left or not first:
                    raise
                self.port = free_port()
        raise AssertionError("unreachable")

    def launch(self) -> None:
        """Start without waiting."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.identity()
            )

    def await_answer(self) -> None:
        """Wait until it answers, if it lives."""

        def answers() -> bool:
            if not self.running:
                raise ServerFailed(f"{self.program} on port {self.port} ended:\n{self.said()}")
            try:
                return self.answers()
            except OSError:
                return False

        await_condition(answers, START_TIMEOUT_S, lambda: f"{self.program}:\n{self.said()}")

    def stop(self) -> None:
        """Let it end in peace; the data stay."""
        if self.process is None or not self.running:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it and all its children with SIGKILL, and wait until they are gone."""
        if self.process is None:
            return
        family: list[psutil.Process] = []
        if self.running:
            # PostgreSQL gives each child a process group of its own: killpg alone misses them.
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(self.process.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.wait(STOP_TIMEOUT_S)
        await_condition(
            lambda: all(map(is_dead, family)), STOP_TIMEOUT_S, lambda: f"They live: {family}"
        )

    def restart(self) -> Self:
        """Stop it, if it runs, and start it with the same port and the same data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def identity(self) -> dict[str, Any]:
        """Return how a child of ours is started: who it is, and that it dies with us."""
        identity: dict[str, Any] = {"start_new_session": True, "preexec_fn": as_a_server}
        if self.user is not None:
            account = pwd.getpwnam(self.user)
            identity |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}
        return identity

    def run_as_other_than_root(self, *users: str) -> None:
        """Choose the first of some users that exists, and give it the folder."""
        if os.getuid() != 0:
            return
        known = {account.pw_name for account in pwd.getpwall()}
        self.user = next((user for user in users if user in known), None)
        if self.user is None:
            self.close()
            raise MissingServer(f"{self.program} does not run as root; there is none of {users}")
        shutil.chown(self.folder, self.user)

    def said(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def roundtrip(self, request: bytes) -> bytes:
        """Send some bytes over a new connection and return the beginning of the answer."""
        with socket.create_connection((self.host, self.port), timeout=1) as connection:
            connection.sendall(request)
            return connection.recv(READ_BYTES)


class RedisServer(Server):
    """Redis; what it has acknowledged survives `kill`, unless it is not durable.

    Further settings are given as keywords, such as `maxmemory="10mb"`.
    """

    program = "redis-server"
    package = "redis-server"

    def __init__(self, *, durable: bool = True, **settings: str) -> None:
        super().__init__()
        self.durable = durable
        self.settings = settings

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes" if self.durable else "no",
            "appendfsync": "always",
            **{name.replace("_", "-"): value for name, value in self.settings.items()},
        }
        return [str(self.binary), *(w for k, v in settings.items() for w in (f"--{k}", v))]

    def answers(self) -> bool:
        return self.roundtrip(b"PING\r\n").startswith(b"+PONG")


class RedisCluster:
    """Three masters that share the slots, without replicas.

    The first seconds of a node are slow: Redis keeps a master that has just started out of
    service for 2 s, however it is configured.
    """

    def __init__(self, *, masters: int = 3, durable: bool = True) -> None:
        settings = {"cluster_enabled": "yes", "cluster_node_timeout": "5000"}
        self.nodes = [RedisServer(durable=durable, **settings) for _ in range(masters)]
        self.formed = False

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the first node is; a cluster client finds the others."""
        return self.nodes[0].url

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(node.host, node.port) for node in self.nodes]

    def start(self) -> Self:
        """Start all nodes, form the cluster if it is new, and wait until all agree."""
        for node in self.nodes:
            node.start()
        if not self.formed:
            self.form()
        for node in self.nodes:
            await_condition(lambda node=node: self.agrees(node), START_TIMEOUT_S, node.said)
        return self

    def form(self) -> None:
        """Share out the slots and introduce the nodes to each other."""
        share = -(-SLOTS // len(self.nodes))
        for number, node in enumerate(self.nodes):
            slots = range(number * share, min(SLOTS, (number + 1) * share))
            # Without epochs of their own, nodes that meet have conflicts to resolve first.
            orders = [f"SET-CONFIG-EPOCH {number + 1}", f"ADDSLOTS {' '.join(map(str, slots))}"]
            orders += [f"MEET {other.host} {other.port}" for other in self.nodes[:number]]
            for order in orders:
                said = node.roundtrip(f"CLUSTER {order}\r\n".encode())
                if not said.startswith(b"+OK"):
                    raise ServerFailed(f"CLUSTER {order[:40]}: {said!r}")
        self.formed = True

    def agrees(self, node: RedisServer) -> bool:
        """Tell whether a node serves, and knows of all others which slots they have."""
        said = node.roundtrip(b"CLUSTER INFO\r\n").decode().split()
        return {"cluster_state:ok", f"cluster_size:{len(self.nodes)}"} <= set(said)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class PostgresServer(Server):
    """PostgreSQL with one superuser, who needs no password; durable."""

    program = "postgres"
    package = "postgresql"
    stop_signal = signal.SIGINT  # ends sessions; SIGTERM would wait for them
    superuser: ClassVar[str] = "waterspout"

    def __init__(self) -> None:
        super().__init__()
        self.run_as_other_than_root("postgres", "nobody")
        self.data = self.folder / "data"
        self.databases = 0

    @classmethod
    def find(cls) -> Path:
        # Debian keeps these programs out of PATH, in one folder per version.
        versions = Path("/usr/lib/postgresql").glob("*/bin")
        numbered = [folder for folder in versions if folder.parent.name.isdecimal()]
        newest = sorted(numbered, key=lambda folder: int(folder.parent.name), reverse=True)
        in_path = shutil.which("initdb")
        for folder in [*newest, *([Path(in_path).resolve().parent] if in_path else [])]:
            if (folder / "initdb").exists() and (folder / "postgres").exists():
                return folder / "postgres"
        raise MissingServer(missing("initdb", cls.package))

    @property
    def dsn(self) -> str:
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        return f"postgresql://{self.superuser}@{self.host}:{self.port}/{database}"

    def fresh_database(self) -> str:
        """Create an empty database and return its DSN."""
        import psycopg

        self.databases += 1
        name = f"fresh_{self.databases}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.dsn_of(name)

    def launch(self) -> None:
        if not self.data.exists():
            self.initialise()
        super().launch()

    def initialise(self) -> None:
        initdb = [str(self.binary.with_name("initdb")), "-D", str(self.data), "--no-sync"]
        # Whatever the locale of who runs the tests: text is UTF-8, and sorted by code point.
        initdb += ["-U", self.superuser, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        with self.log.open("ab") as log:
            identity = self.identity() | {"cwd": self.folder}
            done = subprocess.run(initdb, stdout=log, stderr=log, check=False, **identity)
        if done.returncode:
            raise ServerFailed(f"initdb failed:\n{self.said()}")

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on",
            "max_connections": 60,
            "shared_buffers": "32MB",
            # In the folder, which we remove; not in /dev/shm, where a killed server leaves it.
            "dynamic_shared_memory_type": "mmap",
        }
        options = [word for k, v in settings.items() for word in ("-c", f"{k}={v}")]
        return [str(self.binary), "-D", str(self.data), *options]

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class MemcachedServer(Server):
    """memcached; it forgets everything when it ends."""

    program = "memcached"
    package = "memcached"
    stop_signal = signal.SIGKILL  # nothing to lose, and SIGTERM takes it a second

    def __init__(self, *, memory_mb: int = 64, evicts: bool = True) -> None:
        super().__init__()
        self.run_as_other_than_root("nobody")
        self.memory_mb = memory_mb
        self.evicts = evicts

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def command(self) -> list[str]:
        listen = ["-l", self.host, "-p", str(self.port), "-U", "0"]
        full = [] if self.evicts else ["-M"]
        return [str(self.binary), *listen, *full, "-m", str(self.memory_mb), "-t", "2"]

    def answers(self) -> bool:
        return self.roundtrip(b"version\r\n").startswith(b"VERSION")


def missing(program: str, package: str) -> str:
    return (
        f"NO {program.upper()} HERE: there is no program {program!r}. "
        f"Run `make servers`, or `apt-get install {package}`."
    )


def is_dead(process: psutil.Process) -> bool:
    """Tell whether a process has ended; whether anyone has taken note does not matter."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def free_port() -> int:
    """Return a port that nobody listens on, and whose companion for a cluster is free too."""
    for _ in range(200):
        port = random.choice(PORTS)
        if is_free(port) and is_free(port + CLUSTER_BUS_OFFSET):
            return port
    raise ServerFailed("found no free port")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def await_condition(
    holds: Callable[[], bool], timeout_s: float, explain: Callable[[], str] = lambda: ""
) -> None:
    """Wait until something is so, and fail if it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise ServerFailed(f"not so within {timeout_s} s. {explain()}")
        time.sleep(POLL_S)


LIBC = ctypes.CDLL(None, use_errno=True)


def as_a_server() -> None:
    """Be one: end with who has started it, and come before the tests, which have time-outs."""
    die_with_parent()
    # Linux shares the cores among sessions, not processes, and one of many threads came off badly
    # beside tests that only compute.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-10")


def die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends."""
    if hasattr(LIBC, "prctl"):
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
