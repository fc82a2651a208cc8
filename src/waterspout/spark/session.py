"""What we ask of a SparkSession, whoever made it, classic or Connect."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import itemgetter
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

__all__ = ["SHARED", "SparkRuntime", "freed_if_it_fails", "is_connect", "is_shared"]

log = logging.getLogger(__name__)

_SHIPPED = "_waterspout_shipped"
_CALL_SITE = "callSite.short"

_SHORT_TRACEBACKS = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
_SHORT_TRACEBACKS_IN_WORKERS = "SPARK_SIMPLIFIED_TRACEBACK"
_STAGE_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"
_COMPARING = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)


SHARED = "WATERSPOUT_SHARED_SPARK"
"""In the environment of drivers whose Spark Connect server we have started (`spark/shared.py`)."""

_describing = threading.Lock()
"""Held while a context has another environment for its functions."""

_here = threading.local()
"""What Spark was told of the calling thread."""


def is_shared() -> bool:
    """Whether the server runs on this machine, with our Python and our packages."""
    return bool(os.environ.get(SHARED))


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def freed_if_it_fails(spark: SparkSession) -> Iterator[None]:
    """Give back the blocks of a checkpoint that is cancelled, or fails, in its middle.

    It is then known to Spark alone, which does not let go of it. So what is made here is marked,
    by the place in the code that Spark notes for each RDD.
    """
    if is_connect(spark):
        yield  # the server drops it
        return
    context, mark = spark.sparkContext, f"waterspout-{uuid.uuid4().hex}"
    before = context.getLocalProperty(_CALL_SITE)
    context.setLocalProperty(_CALL_SITE, mark)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the JVM may be gone, and the blocks with it
            for rdd in context._jsc.getPersistentRDDs().values():
                if rdd.rdd().creationSite().shortForm() == mark:
                    rdd.unpersist(False)
        raise
    finally:
        with suppress(Exception):
            context.setLocalProperty(_CALL_SITE, before)  # type: ignore[arg-type]


class SparkRuntime:
    """A session and the few things that classic Spark and Spark Connect do differently."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.is_connect = is_connect(spark)
        self._fair = self._is_fair()
        self._local_cores: int | None = None
        self._ship()
        self.recomputes = self.retries_stages and not self._compares_what_it_recomputes()
        """Whether Spark may compute a lost part of a batch anew and not notice that it differs."""

    @property
    def is_local(self) -> bool:
        """Whether executors run on this machine, as this user, with its files."""
        master = "" if self.is_connect else self.spark.sparkContext.master or ""
        return master.startswith("local") and "cluster" not in master

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
        if self._fair and getattr(_here, "pool", None) != (context, pool):
            context.setLocalProperty("spark.scheduler.pool", pool)
            _here.pool = context, pool  # it stays: a thread does mostly one kind of work
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
            if self._local_cores is None:
                # The embedded session has more slots than cores, for tasks that only wait.
                self._local_cores = min(os.cpu_count() or 1, context.defaultParallelism)
            return self._local_cores
        return int(context.defaultParallelism)

    @property
    def shuffle_partitions(self) -> int | None:
        """Over how many partitions Spark shuffles where nobody says it; None: it does not tell."""
        setting = self.spark.conf.get("spark.sql.shuffle.partitions", None)
        return int(setting) if setting is not None and setting.isdigit() else None

    @property
    def retries_stages(self) -> bool:
        """Whether a lost shuffle is recomputed within a job, instead of failing it.

        The embedded session is set to fail. It is fixed when a SparkContext is made.
        """
        if self.is_connect:  # a server's own settings are in each of its sessions
            return self.spark.conf.get(_STAGE_ATTEMPTS, None) != "1"
        return self._made_with(_STAGE_ATTEMPTS) != "1"

    def _compares_what_it_recomputes(self) -> bool:
        """Have Spark compare a recomputed shuffle with the lost one; tell whether it will.

        Where they differ it computes all that follows anew, or fails the job.
        """
        try:
            for setting in _COMPARING:
                self.spark.conf.set(setting, "true")
        except PySparkException as error:
            log.warning(
                "this Spark session may compute a lost part of a batch anew and does not let us "
                "have it compared with what was lost (%s); start it with %s=1",
                str(error).partition("\n")[0], _STAGE_ATTEMPTS,
            )  # fmt: skip
            return False
        return True

    @property
    def threads_have_properties(self) -> bool:
        """Whether what a thread says of its jobs holds for them, and for no other thread's."""
        if self.is_connect:
            return False
        from py4j.clientserver import ClientServer

        # It is another one with PYSPARK_PIN_THREAD=false: threads of Python share those of the JVM.
        return isinstance(self.spark.sparkContext._gateway, ClientServer)

    @contextmanager
    def workers_of_plans(self) -> Iterator[None]:
        """Let functions of RDDs that are described meanwhile run in the workers of plans.

        Spark keeps workers apart by their environment, and gives those of plans one thing more.
        """
        context = self.spark.sparkContext
        with _describing:
            environment = context.environment
            if self.spark.conf.get(_SHORT_TRACEBACKS, "true") == "true":
                # Another one instead of a change: other threads may be reading it.
                context.environment = {**environment, _SHORT_TRACEBACKS_IN_WORKERS: "1"}
            try:
                yield
            finally:
                context.environment = environment

    @property
    def shows_properties(self) -> bool:
        """Whether what goes with a job is also told to an event log, or to listeners of others."""
        if self.is_connect:
            return False
        logs = str(self._made_with("spark.eventLog.enabled")).lower() == "true"
        return logs or bool(self._made_with("spark.extraListeners"))

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
        return str(self._made_with("spark.scheduler.mode")).upper() == "FAIR"

    def _made_with(self, setting: str) -> str | None:
        """Return a setting of the SparkContext; in one call, where `getConf` takes hundreds."""
        return self.spark.sparkContext._conf.get(setting)

    def _ship(self) -> None:
        """Send this package, once, to executors that do not share our file system."""
        if self.is_local or is_shared():
            return
        # Each batch of a foreachBatch query brings a session of its own to the same executors.
        everyone = self.spark if self.is_connect else self.spark.sparkContext
        if not getattr(everyone, _SHIPPED, False):
            self.spark.addArtifacts(str(_package_zip()), pyfile=True)
            setattr(everyone, _SHIPPED, True)


@cache
def _package_zip() -> Path:
    """Return the package as one file, byte for byte the same wherever it is made.

    Spark takes no other one of the same name, and the batches of a sink over Spark Connect come
    from a process of their own. Nor should a user's own `--py-files` have that name.
    """
    target = Path(tempfile.mkdtemp(prefix="waterspout-")) / "_waterspout_as_the_driver_has_it.zip"
    modules = sorted(_modules(files("waterspout"), "waterspout"), key=itemgetter(0))
    with zipfile.ZipFile(target, "w") as archive:
        for path, module in modules:
            entry = zipfile.ZipInfo(path)  # of 1980, and of nobody in particular
            archive.writestr(entry, module.read_bytes(), zipfile.ZIP_DEFLATED)
    return target


def _modules(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Give the modules of a package with their paths, be it a folder or in a zip or a wheel."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _modules(each, f"{path}/{each.name}")
        elif each.name.endswith(".py"):
            yield f"{path}/{each.name}", each
