"""The Spark session of a command: embedded, on a master, or over Spark Connect."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from waterspout.errors import MissingDependencyError, OutsideError

__all__ = ["new_log_file", "open_session", "ship_by_value"]


def open_session(log_file: Path, *, master: str | None = None, remote: str | None = None) -> Any:
    """Start or reach a Spark; without a master or remote address, the embedded one."""
    from waterspout.spark.session import embedded_session

    if remote is None and (master is None or master.startswith("local")):
        return embedded_session(log_file, {} if master is None else {"spark.master": master})
    try:
        return _remote(remote) if remote is not None else _on_cluster(str(master), log_file)
    except ImportError as error:
        raise MissingDependencyError("Spark Connect's client", "connect") from error
    except Exception as error:
        raise OutsideError(
            f"Spark at {remote or master} cannot be used: {_first_line(error)} Check the address "
            f"and that the server runs; the log is {log_file}."
        ) from error


def new_log_file(name: str) -> Path:
    """Return where Spark may log to: in a new folder among the temporary files."""
    return Path(tempfile.mkdtemp(prefix="waterspout-")) / f"{name}.log"


def ship_by_value(modules: Iterable[ModuleType]) -> None:
    """Send functions and classes of these modules to the workers whole, not by name."""
    from waterspout.spark import checks

    pickler: Any = vars(checks)["cloudpickle"]
    for module in modules:
        pickler.register_pickle_by_value(module)


def _remote(address: str) -> Any:
    from waterspout.spark import session

    return vars(session)["SparkSession"].builder.remote(address).getOrCreate()


def _on_cluster(master: str, log_file: Path) -> Any:
    from waterspout.spark import session
    from waterspout.spark.java import require_java

    require_java()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    quiet = Path(tempfile.mkdtemp(prefix="waterspout-")) / "log4j2.properties"
    quiet.write_text(session._LOG4J.format(path=log_file))
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.scheduler.mode": "FAIR",
        # A lost shuffle must fail the attempt; recomputing part of a batch could change it.
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = vars(session)["SparkSession"].builder.appName("waterspout").master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with session._output_to(log_file):
        return builder.getOrCreate()


def _first_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return text if text.endswith(".") else f"{text}."
