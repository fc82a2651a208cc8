"""`kill -9` before every operation of a driver on files and tables: exact at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soaking import soaked

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(("delta:97", "parquet:73"), id="some"),
        soaked(("delta:1", "parquet:1"), id="all"),
    ],
)
@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_before_any_operation_leaves_each_row_once(tmp_path, steps):
    child = [sys.executable, "-m", "tests.lake.kill_child", str(tmp_path), *steps]

    ended = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    for kind, found in json.loads(ended.stdout).items():
        assert found["wrong"] == [], kind
        assert found["operations"] > 80
