"""A Spark for children that are killed: started for each, or one server for all of them.

A JVM takes longest to start. Where only the death of the driver is tested, its children share
one server of Spark Connect.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from waterspout.spark.connect import connect_session
from waterspout.spark.starting import embedded_session

__all__ = ["REMOTE", "session"]

REMOTE = "WATERSPOUT_TEST_REMOTE"
"""In a child's environment, the address of the server that it is to use."""


def session(log_file: Path) -> SparkSession:
    """Return the session of a child."""
    remote = os.environ.get(REMOTE)
    return connect_session(remote, 60.0) if remote else embedded_session(log_file)
