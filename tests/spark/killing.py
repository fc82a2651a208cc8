"""Drivers in processes of their own that are killed, and the Spark that they use.

A JVM takes longest to start. Where only the death of the driver is tested, children share one
server of Spark Connect.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from waterspout.faults import ENVIRONMENT_VARIABLE
from waterspout.spark.connect import connect_session
from waterspout.spark.starting import embedded_session

__all__ = ["REMOTE", "ROOT", "run_child", "said", "session"]

ROOT = Path(__file__).parents[2]
REMOTE = "WATERSPOUT_TEST_REMOTE"
"""In a child's environment, the address of the server that it is to use; empty: none."""


def session(log_file: Path) -> SparkSession:
    """Return the session of a child."""
    remote = os.environ.get(REMOTE)
    return connect_session(remote, 60.0) if remote else embedded_session(log_file)


def run_child(
    module: str, folder: Path, faults: Sequence[dict[str, Any]] = (), remote: str = ""
) -> int:
    """Run a module with a folder as its argument, and its faults; return how it ended.

    What it says is appended to FOLDER/child.log.
    """
    env = {**os.environ, REMOTE: remote, ENVIRONMENT_VARIABLE: json.dumps(list(faults))}
    with open(folder / "child.log", "ab") as log:
        return subprocess.run(
            [sys.executable, "-m", module, str(folder)], cwd=ROOT, env=env, stdout=log, stderr=log,
            timeout=300, check=False,
        ).returncode  # fmt: skip


def said(folder: Path) -> str:
    """Return the end of what the children of a folder have said."""
    return (folder / "child.log").read_text(errors="replace")[-3000:]
