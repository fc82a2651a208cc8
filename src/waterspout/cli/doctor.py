"""`waterspout doctor`: is everything there that a run needs?"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from waterspout._addresses import shown
from waterspout._causes import one_line
from waterspout._config import Config
from waterspout.cli.answers import AsJson, print_json
from waterspout.cli.failures import FAILED
from waterspout.cli.options import Master, Remote
from waterspout.cli.screen import Screen
from waterspout.coordination.factory import why_not_writable
from waterspout.errors import JavaError, WaterspoutError
from waterspout.spark.java import require_java

__all__ = ["doctor"]

_PACKAGES = {"pyspark": ((4, 1), None), "pyarrow": ((15,), None), "pandas": ((2, 2), (3,))}
_SQLITE_MIN = (3, 37)
_EXTRAS = {
    "cassandra": "cassandra-driver",
    "connect": "grpcio",
    "kafka": "confluent-kafka",
    "memcached": "pymemcache",
    "otel": "opentelemetry-sdk",
    "postgres": "psycopg",
    "rabbitmq": "pika",
    "redis": "redis",
    "serve": "uvicorn",
    "sketches": "datasketches",
    "ui": "nicegui",
    "zookeeper": "kazoo",
}
_MEMORY_MIN_GB = 3.0
_STAGE_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. Only what is needed and missing fails the command."""

    mark: str
    name: str
    text: str

    @property
    def style(self) -> str:
        """How a terminal shows it."""
        return {"ok": "green", "MISSING": "bold red", "warning": "yellow"}.get(self.mark, "dim")


def doctor(master: Master = None, remote: Remote = None, as_json: AsJson = False) -> None:
    """Look at Java, Python, the packages and the home folder; say what is missing.

    With --master or --remote that Spark is reached as well, and its workers are asked.
    """
    screen = Screen(quiet=as_json)
    found: list[Finding] = []
    for finding in (*_findings(), *_elsewhere(master, remote)):
        found.append(finding)
        screen.say(f"{finding.mark:<8} {finding.name:<11} {finding.text}", finding.style)
    missing = sum(finding.mark == "MISSING" for finding in found)
    if as_json:
        listed = [{**asdict(each), "mark": each.mark.lower()} for each in found]
        print_json({"ready": not missing, "missing": missing, "findings": listed})
    if missing:
        things = "one thing is" if missing == 1 else f"{missing} things are"
        screen.say(f"{things} missing, see above", "bold red")
        raise typer.Exit(FAILED)
    screen.say("everything that is needed is there")


def _findings() -> Iterator[Finding]:
    yield _java()
    yield Finding("ok", "Python", f"{sys.version.split()[0]}  {sys.executable}")
    yield _workers()
    yield from (_package(name) for name in _PACKAGES)
    yield _sqlite()
    yield _session()
    yield _machine()
    yield _home()
    yield from (_extra(extra, package) for extra, package in _EXTRAS.items())


def _workers() -> Finding:
    """Look at the Python that workers of a Spark on this machine would run."""
    from waterspout.spark.workers import why_unfit

    chosen = os.environ.get("PYSPARK_PYTHON")
    if not chosen:
        return Finding("ok", "workers", "on this machine they run this Python, as we tell Spark")
    reason = why_unfit(chosen)
    if reason is not None:
        return Finding("MISSING", "workers", f"PYSPARK_PYTHON is {chosen}, which {reason}")
    return Finding("ok", "workers", f"PYSPARK_PYTHON is {chosen}, which can do this one's work")


def _elsewhere(master: str | None, remote: str | None) -> Iterator[Finding]:
    """Reach a Spark that was named, and ask its workers what they run."""
    place = shown(remote or master or "")
    version = ".".join(map(str, sys.version_info[:2]))
    if not place:
        needs = f"Python {version} with pyarrow and what topologies import on every executor"
        yield Finding(
            "note", "clusters", f"need {needs}; doctor --master or --remote sc://... asks"
        )
        return
    from waterspout.spark.session import SparkRuntime
    from waterspout.spark.starting import open_session
    from waterspout.spark.workers import ask_workers

    log_file = Path(tempfile.mkdtemp(prefix="waterspout-")) / "doctor.log"
    try:
        session = open_session(log_file, master=master, remote=remote)
    except WaterspoutError as error:
        yield Finding("MISSING", "Spark", one_line(str(error)))
        return
    try:
        runtime = SparkRuntime(session)
        yield Finding("ok", "Spark", f"{session.version} at {place}")
        told = ask_workers(runtime)
        text = f"Python {told.python}  {told.executable}, pyarrow {told.pyarrow}"
        yield Finding("ok", "executors", text)
        if runtime.recomputes:
            wanted = f"start it with {_STAGE_ATTEMPTS}=1"
            yield Finding("warning", "shuffles", f"a lost one is computed anew; {wanted}")
    except WaterspoutError as error:
        yield Finding("MISSING", "executors", one_line(str(error)))
    finally:
        session.stop()


def _java() -> Finding:
    try:
        major = require_java()
    except JavaError as error:
        return Finding("MISSING", "Java", str(error))
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java") or "java"
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
    full = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    from_home = " (from JAVA_HOME)" if home else ""
    return Finding("ok", "Java", f"{full[1] if full else major}  {path}{from_home}")


def _package(name: str) -> Finding:
    at_least, below = _PACKAGES[name]
    wanted = f"{name}>={_dotted(at_least)}" + (f",<{_dotted(below)}" if below else "")
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding("MISSING", name, f"not installed; run: pip install '{wanted}'")
    numbers = _numbers(found)
    if numbers < at_least or (below is not None and numbers >= below):
        return Finding("MISSING", name, f"{found} does not fit; run: pip install '{wanted}'")
    return Finding("ok", name, found)


def _sqlite() -> Finding:
    found = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        remedy = f"{_dotted(_SQLITE_MIN)} or newer is needed: use a newer Python"
        return Finding("MISSING", "SQLite", f"{found}; {remedy}")
    return Finding("ok", "SQLite", found)


def _session() -> Finding:
    """Look at what a session of the user's own would be started with."""
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(
        os.environ.get("SPARK_HOME", ""), "conf"
    )
    file = Path(folder) / "spark-defaults.conf"
    wanted = f"set {_STAGE_ATTEMPTS} 1 for sessions of your own"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return Finding("ok", "Spark", f"a lost shuffle fails the attempt; {wanted}")
    pairs = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in lines)
    found = {pair[0]: pair[-1].strip() for pair in pairs}.get(_STAGE_ATTEMPTS)
    if found == "1":
        return Finding("ok", "Spark", f"a lost shuffle fails the attempt, as {file} says")
    now = "does not set it" if found is None else f"sets it to {found}"
    why = "a lost part of a batch is computed anew within an attempt"
    return Finding("warning", "Spark", f"{wanted}: {file} {now}, so {why}")


def _machine() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = _memory_gb()
    text = f"{cores} cores, {memory:.1f} GB of memory"
    if memory < _MEMORY_MIN_GB:
        return Finding("warning", "machine", f"{text}; the embedded Spark wants 3 GB or more")
    return Finding("ok", "machine", text)


def _memory_gb() -> float:
    """Return what this process may use: the machine's memory, or its container's."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(limits) / 1e9


def _home() -> Finding:
    home = Config().home_path().absolute()
    reason = why_not_writable(home)
    if reason is not None:
        remedy = "set WATERSPOUT_HOME to a folder that can be written"
        return Finding("MISSING", "home", f"{home} cannot be used: {reason}; {remedy}")
    return Finding("ok", "home", f"{home}{'' if home.exists() else ' (will be made when needed)'}")


def _extra(extra: str, package: str) -> Finding:
    try:
        return Finding("ok", extra, f"{package} {version(package)}")
    except PackageNotFoundError:
        return Finding("optional", extra, f"not installed; run: pip install 'waterspout[{extra}]'")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
