"""What we ask of a SparkSession: one of our own, or a given one, classic or Connect."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import waterspout
from waterspout.errors import JavaError
from waterspout.spark.java import require_java

__all__ = ["SparkRuntime", "embedded_session"]

log = logging.getLogger(__name__)

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


class SparkRuntime:
    """A session and the few things that classic Spark and Spark Connect do differently."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
        self._fair = self._is_fair()
        self._ship()

    @contextmanager
    def tagged(self, tag: str, description: str, pool: str) -> Iterator[None]:
        """Run the jobs of the calling thread under a tag that `cancel` finds."""
        if self.is_connect:
            self.spark.addTag(tag)
            try:
                yield
            finally:
                self.spark.removeTag(tag)
            return
        context = self.spark.sparkContext
        context.addJobTag(tag)
        context.setLocalProperty("spark.job.description", description)
        if self._fair:
            context.setLocalProperty("spark.scheduler.pool", pool)
        try:
            yield
        finally:
            context.removeJobTag(tag)

    def cancel(self, tag: str) -> None:
        """Cancel the jobs under a tag; their tasks may go on for a while."""
        if self.is_connect:
            self.spark.interruptTag(tag)
        else:
            self.spark.sparkContext.cancelJobsWithTag(tag)

    def free(self, frame: DataFrame) -> None:
        """Give back the blocks of a locally checkpointed frame."""
        if self.is_connect:
            return  # the server drops them when the client forgets the frame
        try:
            # Dataset.unpersist does not know of these blocks; the RDD that holds them does.
            frame._jdf.queryExecution().logical().rdd().unpersist(False)
        except Exception:  # the JVM may be gone, and the blocks with it
            log.debug("could not free a staged frame", exc_info=True)

    @property
    def cores(self) -> int | None:
        """How many tasks can really compute at once; None if the session does not tell."""
        if self.is_connect:
            return None
        context = self.spark.sparkContext
        if (context.master or "").startswith("local"):
            # The embedded session has more slots than cores, for tasks that only wait.
            return min(os.cpu_count() or 1, context.defaultParallelism)
        return int(context.defaultParallelism)

    @property
    def is_alive(self) -> bool:
        """Whether the session can still run jobs."""
        if self.is_connect:
            return not getattr(self.spark, "is_stopped", False)
        java_context = self.spark.sparkContext._jsc
        try:
            return java_context is not None and not java_context.sc().isStopped()
        except Exception:  # the gateway's process has died
            return False

    def _is_fair(self) -> bool:
        if self.is_connect:
            return False
        mode = self.spark.sparkContext.getConf().get("spark.scheduler.mode", "FIFO")
        return str(mode).upper() == "FAIR"

    def _ship(self) -> None:
        """Send this package to executors that do not share our file system."""
        master = "connect" if self.is_connect else self.spark.sparkContext.master
        if master is not None and master.startswith("local") and "cluster" not in master:
            return
        self.spark.addArtifacts(str(_package_zip()), pyfile=True)


_embedded_lock = threading.Lock()


def embedded_session(
    log_file: Path | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return this process's session: the active one, or a local one made for the purpose.

    Twice as many task slots as cores, since tasks that wait for a store hold theirs; tasks are
    retried (plain `local[n]` never does); listens on loopback only; logs to a file. `settings` are
    Spark settings that override ours; they count only where the session is made here.
    """
    with _embedded_lock:
        active = SparkSession.getActiveSession()
        if active is not None:
            return active
        require_java()
        path = log_file or Path(tempfile.mkdtemp(prefix="waterspout-")) / "spark.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        log_settings = Path(tempfile.mkdtemp(prefix="waterspout-")) / "log4j2.properties"
        log_settings.write_text(_LOG4J.format(path=path))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        try:
            with _output_to(path):
                session: SparkSession = _builder(log_settings, settings or {}).getOrCreate()
        except Exception as error:
            raise JavaError(f"Spark did not start; its log is {path}: {error}") from error
        log.info("Spark logs to %s", path)
        return session


def _builder(log_settings: Path, overrides: Mapping[str, str]) -> Any:
    cores = os.cpu_count() or 2
    settings: dict[str, str] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_settings.as_uri()}",
        "spark.scheduler.mode": "FAIR",
        # A lost shuffle must fail the attempt; recomputing part of a batch could change it.
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        # A batch of one small file is still read by all cores.
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": tempfile.gettempdir() + "/waterspout-warehouse",
        "spark.driver.maxResultSize": "512m",
        "spark.master": f"local[{2 * cores},4]",
        **overrides,
    }
    builder = SparkSession.builder.appName("waterspout")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Let the JVM, which inherits our output, write to a file instead of the screen."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for handle in (target, *saved):
            os.close(handle)


def _package_zip() -> Path:
    root = Path(waterspout.__file__).parent
    target = Path(tempfile.mkdtemp(prefix="waterspout-")) / "waterspout.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("waterspout") / path.relative_to(root))
    return target
