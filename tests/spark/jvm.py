"""How the tests start JVMs and Spark's Python workers cheaply. By environment: children inherit it.

A driver's first batch costs 14 s of CPU: half of it the JVM loads classes, the other half each
Python worker imports the same modules. So the JVM maps classes from an archive, and workers are
forked from a daemon that has imported what they need. `python -m tests.spark.jvm` writes the
archive, once per machine; where it is missing or does not fit, Java goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
DAEMON = "tests.spark.daemon"

# The better compiler does not earn its time back within a test.
COMPILER = "-XX:TieredStopAtLevel=1"


def archive() -> Path:
    """Return where the archive of this Java and this Spark is, or would be."""
    java = Path(shutil.which("java") or "java").resolve()
    spark = find_spec("pyspark")
    parts = [java, java.stat().st_mtime_ns if java.exists() else 0, version("pyspark")]
    parts.append(spark.origin if spark else None)
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "waterspout" / "jvm" / f"{name}.jsa"


def set_environment(archiving: str = "") -> None:
    """Let all JVMs that this process and its children start be cheap ones."""
    # What is given goes first: workers must run the same code as we do, that of a mutant as well.
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src"), str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(":".join(paths).split(os.pathsep)))
    os.environ.setdefault("JDK_JAVA_OPTIONS", COMPILER)
    os.environ["SPARK_SUBMIT_OPTS"] = cheap_options(archiving)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf spark.python.daemon.module={DAEMON} pyspark-shell"


def cheap_options(archiving: str = "") -> str:
    """Return the options of a JVM that begins with the classes of the archive, or writes it."""
    shared = archiving or f"-XX:SharedArchiveFile={archive()}"
    return f"-XX:+UseSerialGC {shared} -Xlog:disable"


def executor_settings() -> dict[str, str]:
    """Return settings with which executors of their own are as cheap as a local Spark is here."""
    return {
        "spark.python.daemon.module": DAEMON,
        "spark.executor.extraJavaOptions": f"{COMPILER} {cheap_options()}",
    }


def submit_args(settings: Mapping[str, str]) -> str:
    """Return settings as PySpark takes them from PYSPARK_SUBMIT_ARGS."""
    words = [word for k, v in settings.items() for word in ("--conf", f"{k}={v}")]
    return shlex.join([*words, "pyspark-shell"])


def write_archive() -> None:
    """Run a topology that uses much of Spark, and keep the classes that it loaded."""
    target = archive()
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    set_environment(f"-XX:ArchiveClassesAtExit={unfinished}")
    from tests.spark.warming import run_widely

    with tempfile.TemporaryDirectory() as folder:
        process = run_widely(Path(folder))
    # The JVM writes when it ends, and that is when nobody speaks to it any more.
    process.stdin.close()
    process.wait(timeout=120)
    if unfinished.exists():
        unfinished.replace(target)


if __name__ == "__main__":
    sys.exit(write_archive())
