"""The same code over Spark Connect, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# In each run of CI: the whole of tests/cluster, over Connect to every kind of Spark.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]

COUNTS = {
    "the": 12, "cow": 3, "jumped": 3, "over": 3, "moon": 3, "man": 3, "went": 3, "to": 3,
    "store": 3,
}  # fmt: skip


def test_word_counts_over_spark_connect_are_exact(tmp_path):
    env = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with open(tmp_path / "child.log", "wb") as log:
        # A group of its own: the server that it starts must not outlive the test.
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.connect_child", str(tmp_path)],
            env=env, stdout=log, stderr=log, start_new_session=True, cwd=ROOT,
        )  # fmt: skip
        try:
            process.wait(timeout=200)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    assert process.returncode == 0, (tmp_path / "child.log").read_text()[-3000:]
    found = json.loads((tmp_path / "result.json").read_text())
    # The server would recompute a lost shuffle: it is told to compare it with what was lost.
    assert found.pop("compares") == "true"
    rows, refused = found.pop("addresses")
    assert rows == "3"
    assert "does not let us in (UNAUTHENTICATED). See that the token" in refused
    assert "hunter2" not in refused
    (spark, executors) = found.pop("doctor")
    assert spark[:2] == ["ok", "Spark"]
    assert executors[:2] == ["ok", "executors"]
    assert executors[2].startswith("Python {}.{}  ".format(*sys.version_info))
    assert found == {"driver": COUNTS, "tasks": COUNTS, "bolts": COUNTS, "batches": COUNTS}
