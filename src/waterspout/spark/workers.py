"""Which Python the workers of a Spark run: it must be able to do what this process has described.

Functions travel to them by name and by bytecode, so that it must be the same Python, with the same
packages. Where the workers are on this machine we choose it; elsewhere they are asked, once, before
a run.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from waterspout._causes import one_line
from waterspout.errors import OutsideError
from waterspout.spark.session import SparkRuntime, is_shared

__all__ = ["Workers", "ask_workers", "require_workers", "why_unfit"]

log = logging.getLogger(__name__)

_VARIABLE = "PYSPARK_PYTHON"
_PROGRAM = "import sys; print('%d.%d' % sys.version_info[:2]); import pyarrow, waterspout"
_ASKING_S = 60.0


class Workers(NamedTuple):
    """What workers tell of themselves."""

    python: str
    executable: str
    pyarrow: str


def require_workers(runtime: SparkRuntime) -> None:
    """See that the workers run a Python that can do this driver's work, or say what is wrong."""
    if is_shared():
        return
    if not runtime.is_local:
        ask_workers(runtime)
        return
    context = runtime.spark.sparkContext
    chosen = str(context.pythonExec)
    if _is_ours(chosen):
        return
    if not os.environ.get(_VARIABLE):
        # Spark takes the first python3 of PATH, which is another one in an environment that was
        # not activated.
        log.info("Spark's workers run %s, as this process, in place of %s", sys.executable, chosen)
        context.pythonExec = sys.executable
        return
    reason = why_unfit(chosen)
    if reason is not None:
        raise OutsideError(f"{_VARIABLE} is {chosen}, which {reason}")


def why_unfit(python: str) -> str | None:
    """Return why an interpreter of this machine cannot be that of workers; None: it can."""
    ours = _version()
    remedy = f"unset {_VARIABLE}, or set it to {sys.executable}"
    path = shutil.which(python)
    if path is None:
        return f"is not there; {remedy}"
    try:
        said = subprocess.run(  # noqa: S603  (it is what Spark would run)
            [path, "-c", _PROGRAM], capture_output=True, text=True, timeout=_ASKING_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run ({error}); {remedy}"
    version = said.stdout.strip()
    if version != ours:
        found = f"Python {version}" if version else "no Python"
        return f"is {found}, and this process runs Python {ours}; {remedy}"
    if said.returncode:
        why = (said.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        return f"cannot import what workers need ({why}); install it there, or {remedy}"
    return None


def ask_workers(runtime: SparkRuntime) -> Workers:
    """Ask a worker what it runs, by a job of one row."""
    try:
        frame = runtime.spark.range(1).mapInArrow(
            _tell, "python string, executable string, pyarrow string"
        )
        return Workers(*frame.collect()[0])
    except Exception as error:
        raise OutsideError(
            f"the workers of this Spark cannot run Python for us: {one_line(str(error))} They need "
            f"Python {_version()}, as this process has it, with pyarrow and all that the topology "
            f"imports: set {_VARIABLE} (spark.pyspark.python) to such a Python where executors, or "
            "the server of sc://, are started."
        ) from error


def _tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        values = [[_version()], [sys.executable], [pa.__version__]]
        arrays = [pa.array(value, pa.string()) for value in values]
        yield pa.RecordBatch.from_arrays(arrays, names=list(Workers._fields))


def _version() -> str:
    return "{}.{}".format(*sys.version_info)


def _is_ours(python: str) -> bool:
    # Not what links point to: the python of an environment is a link to that of the system.
    path = shutil.which(python)
    return path is not None and os.path.abspath(path) == os.path.abspath(sys.executable)
