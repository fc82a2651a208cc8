"""Spark's Python daemon, with imported what the workers of tests use: they are forked from it."""

from __future__ import annotations

import sys

# Spark puts its own zip files first, which each worker would read anew; here they are installed.
sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
sys.path_importer_cache.clear()

import hypothesis  # noqa: E402, F401
import numpy as np  # noqa: E402, F401
import pandas as pd  # noqa: E402, F401
import pyarrow.compute  # noqa: E402
import pyarrow.dataset  # noqa: E402, F401
import pyspark.sql.pandas.serializers  # noqa: E402
import pyspark.worker  # noqa: E402, F401
import pytest  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

import waterspout.spark.supersteps  # noqa: E402
import waterspout.spark.tasks  # noqa: E402
import waterspout.testing  # noqa: E402
import waterspout.trident  # noqa: E402, F401

if __name__ == "__main__":
    manager()
