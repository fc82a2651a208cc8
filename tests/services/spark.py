"""A Spark cluster on the loopback, and Spark Connect before any Spark, from PySpark's classes."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import ClassVar, Self

import psutil

from tests.services.servers import HOST, MissingServer, Server, await_condition, is_dead
from tests.spark.jvm import cheap_options

ROOT = Path(__file__).parents[2]
MEMORY = "1g"
EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkServer(Server):
    """A Java process of Spark's that listens on a port."""

    package = "default-jre-headless"
    script: ClassVar[str] = "spark-class"
    python = sys.executable
    modules: tuple[Path, ...] = (ROOT / "src", ROOT)

    @classmethod
    def find(cls) -> Path:
        spark = importlib.util.find_spec("pyspark")
        folder = Path(spark.origin).parent / "bin" if spark and spark.origin else Path("/nowhere")
        if not (folder / cls.script).exists():
            raise MissingServer(f"{cls.program} needs PySpark with its programs; there are none")
        return folder / cls.script

    def launch(self) -> None:
        """Start it with what its executors will have: our Python, our modules, one address."""
        given = {
            "SPARK_LOCAL_IP": self.host,
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "PYSPARK_PYTHON": self.python,
            "PYTHONPATH": os.pathsep.join(map(str, self.modules)),
            # Masters and workers, and Spark Connect: the same classes as in a driver's JVM.
            "SPARK_DAEMON_JAVA_OPTS": cheap_options(),
            "SPARK_SUBMIT_OPTS": cheap_options(),
            "PYSPARK_SUBMIT_ARGS": "",
        }
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            super().launch()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def answers(self) -> bool:
        with socket.create_connection((self.host, self.port), timeout=1):
            return True


class Master(SparkServer):
    """The master of a standalone cluster."""

    program = "spark-master"

    @property
    def url(self) -> str:
        return f"spark://{self.host}:{self.port}"

    def command(self) -> list[str]:
        where = ["--host", self.host, "--port", str(self.port), "--webui-port", "0"]
        return [str(self.binary), "org.apache.spark.deploy.master.Master", *where]


class Worker(SparkServer):
    """A worker of a standalone cluster: one core, room for one executor."""

    program = "spark-worker"

    def __init__(self, master: str, host: str = HOST) -> None:
        super().__init__()
        self.master = master
        self.host = host

    def command(self) -> list[str]:
        where = ["--host", self.host, "--port", str(self.port), "--webui-port", "0"]
        size = ["--cores", "1", "--memory", MEMORY, "--work-dir", str(self.folder / "work")]
        return [
            *(str(self.binary), "org.apache.spark.deploy.worker.Worker"),
            *(*where, *size, self.master),
        ]

    def executors(self) -> list[psutil.Process]:
        """Return the executors that it has started, with their JVMs."""
        if self.process is None or not self.running:
            return []
        return executors_of(self.process.pid)


class StandaloneCluster:
    """A master and some workers of one core each; `bare` has a Python without our modules.

    Each worker has an address of its own on the loopback: Spark runs no second copy of a task on a
    host that has one.
    """

    def __init__(self, workers: int = 2, bare: str | None = None) -> None:
        self.bare = bare
        self.master = Master()
        self.workers: list[Worker] = []
        self.count = workers

    @property
    def url(self) -> str:
        return self.master.url

    def __enter__(self) -> Self:
        try:
            self.master.start()
            for number in range(1, 1 + self.count):
                self.workers.append(worker := Worker(self.url, f"127.0.0.{number}"))
                if self.bare is not None:
                    worker.python, worker.modules = self.bare, ()
                worker.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def executors(self) -> list[psutil.Process]:
        return [each for worker in self.workers for each in worker.executors()]

    def close(self) -> None:
        for server in (*self.workers, self.master):
            server.kill()
            server.close()


class ConnectServer(SparkServer):
    """A Spark Connect server before a Spark: local, with executors, or a cluster."""

    program = "spark-connect"
    script = "spark-submit"

    def __init__(self, master: str, **settings: str) -> None:
        super().__init__()
        self.master = master
        self.settings = settings

    @property
    def url(self) -> str:
        return f"sc://{self.host}:{self.port}"

    def command(self) -> list[str]:
        settings = {
            "spark.connect.grpc.binding.address": self.host,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": self.host,
            "spark.driver.bindAddress": self.host,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.executor.memory": MEMORY,
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            **self.settings,
        }
        options = [word for k, v in settings.items() for word in ("--conf", f"{k}={v}")]
        return [
            *(str(self.binary), "--master", self.master, *options),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            "spark-internal",
        ]


def executors_of(pid: int) -> list[psutil.Process]:
    """Return the JVMs of executors among the descendants of a process."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if any(EXECUTOR in word for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found


def await_death(processes: list[psutil.Process], timeout_s: float = 20) -> None:
    await_condition(lambda: all(map(is_dead, processes)), timeout_s, lambda: f"{processes} live")
