"""Starting a Spark session: embedded, on a cluster, or over Spark Connect."""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from waterspout._own_files import open_private, private_folder
from waterspout.errors import JavaError, OutsideError
from waterspout.spark.connect import connect_session
from waterspout.spark.java import require_java

__all__ = ["embedded_session", "open_session", "ship_by_value"]

log = logging.getLogger(__name__)

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
"""

_AS_TEXT = """\
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""

# The keys are those of `waterspout.metrics.JsonFormatter`.
_JSON_LINE = {
    "time": {
        "$resolver": "timestamp",
        "pattern": {"format": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "timeZone": "UTC"},
    },
    "level": {"$resolver": "level", "field": "name"},
    "logger": {"$resolver": "logger", "field": "name"},
    "message": {"$resolver": "message", "stringified": True},
    "exception": {
        "$resolver": "exception",
        "field": "stackTrace",
        "stackTrace": {"stringified": True},
    },
}
_AS_JSON = f"""\
appender.file.layout.type = JsonTemplateLayout
appender.file.layout.eventTemplate = {json.dumps(_JSON_LINE)}
"""

# A lost shuffle must fail the attempt; recomputing part of a batch could change it.
_ALWAYS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.sql.session.timeZone": "UTC",
}

# What every system takes as the path of a socket; macOS has 104 bytes, with one for the end.
_SOCKET_PATH_MAX = 100

_lock = threading.Lock()


def embedded_session(
    log_file: Path | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    json_logs: bool = False,
) -> SparkSession:
    """Return this process's session: the active one, or a local one made for the purpose.

    Twice as many task slots as cores, since tasks that wait for a store hold theirs; tasks are
    retried (plain `local[n]` never does); listens on loopback only; logs to a file. `settings` are
    Spark settings that override ours; they count only where the session is made here.
    """
    with _lock:
        active = SparkSession.getActiveSession()
        if active is not None:
            return active
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        return _start({**_embedded(), **(settings or {})}, log_file, json_logs=json_logs)


def open_session(
    log_file: Path,
    *,
    master: str | None = None,
    remote: str | None = None,
    connect_timeout_secs: float = 10.0,
    json_logs: bool = False,
) -> SparkSession:
    """Start or reach a Spark; without a master or remote address, the embedded one.

    `json_logs` if a Spark that is started here is to log as JSON.
    """
    if remote is not None:
        return connect_session(remote, connect_timeout_secs)
    if master is None or master.startswith("local"):
        settings = {} if master is None else {"spark.master": master}
        return embedded_session(log_file, settings, json_logs=json_logs)
    try:
        return _start({"spark.master": str(master)}, log_file, json_logs=json_logs)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OutsideError(
            f"Spark at {master} cannot be used: {reason}. Check the address and that "
            f"the server runs; the log is {log_file}."
        ) from error


def ship_by_value(modules: Iterable[ModuleType]) -> None:
    """Send functions and classes of these modules to the workers whole, not by name."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _start(settings: Mapping[str, str], log_file: Path | None, *, json_logs: bool) -> SparkSession:
    require_java()
    scratch = Path(tempfile.mkdtemp(prefix="waterspout-"))
    path = log_file or scratch / "spark.log"
    private_folder(path.parent)
    if log_file is not None:
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    # Nobody else can make a folder of that name before Spark does, or put a link there.
    settings = {"spark.sql.warehouse.dir": str(scratch / "warehouse"), **settings}
    if settings["spark.master"].startswith("local"):
        settings = {**_own_sockets(scratch), **settings}
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(_LOG4J.format(path=path) + (_AS_JSON if json_logs else _AS_TEXT))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = f"-Dlog4j2.configurationFile={log_settings.as_uri()}"
    builder: Any = SparkSession.builder.appName("waterspout")
    for key, value in {**_ALWAYS, "spark.driver.extraJavaOptions": options, **settings}.items():
        builder = builder.config(key, value)
    try:
        with _output_to(path):
            session: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise JavaError(f"Spark did not start; its log is {path}: {_cause(error)}") from error
    log.info("Spark logs to %s", path)
    return session


def _cause(error: Exception) -> str:
    """Return what Java says, without the call that Python made and the frames of the stack."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line[2:] for line in lines if line.startswith(": ")), lines[0])


def _embedded() -> dict[str, str]:
    cores = os.cpu_count() or 2
    return {
        "spark.master": f"local[{2 * cores},4]",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.maxResultSize": "512m",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        # A batch of one small file is still read by all cores; not 0, on which Spark stumbles
        # where a batch has fewer bytes than there are slots.
        "spark.sql.files.openCostInBytes": "16384",
    }


def _own_sockets(folder: Path) -> dict[str, str]:
    """Let the JVM and Python talk over sockets in a folder of ours instead of loopback's TCP.

    There the few rows of a small job often come 40 ms late: the JVM sends them when what it sent
    before is acknowledged, and the worker's system waits with that for something to send.
    """
    longest = len(os.fsencode(folder)) + len("/.00000000-0000-0000-0000-000000000000.sock")
    if not hasattr(socket, "AF_UNIX") or longest > _SOCKET_PATH_MAX:
        return {}
    name = "spark.python.unix.domain.socket"
    return {f"{name}.enabled": "true", f"{name}.dir": str(folder)}


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Let the JVM, which inherits our output, write to a file instead of the screen."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    target = open_private(path, os.O_WRONLY | os.O_APPEND, follow=True)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for handle in (target, *saved):
            os.close(handle)
