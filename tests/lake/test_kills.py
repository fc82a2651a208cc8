"""`kill -9` before every operation of a driver on files and tables: the rows are exact at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soaking import soaked

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param("delta", 47, id="delta some"),
        pytest.param("parquet", 37, id="parquet some"),
        soaked("delta", 1, id="delta all"),
        soaked("parquet", 1, id="parquet all"),
    ],
)
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_before_any_operation_leaves_each_row_once(tmp_path, kind, step):
    child = [sys.executable, "-m", "tests.lake.kill_child", str(tmp_path), kind, str(step)]

    ended = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["wrong"] == []
    assert found["operations"] > 80
