"""Two drivers of one transactional topology: one works, whatever the other believes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.spark.transactional_child import ROWS
from tests.transactional.spark_components import contents, recount
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.faults import ENVIRONMENT_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]


def start(folder, log, *faults):
    env = {
        **os.environ,
        ENVIRONMENT_VARIABLE: json.dumps(faults),
    }
    with open(folder / log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.transactional_child", str(folder)],
            env=env, stdout=out, stderr=out, cwd=ROOT,
        )  # fmt: skip


def wait_for(holds, timeout_s=150):
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, "what was waited for did not happen"
        time.sleep(0.05)


def pause_between_transactions(child, folder):
    """Stop a child at a moment when none of its threads holds the lock of the store's file."""
    while True:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        path = folder / "home" / "owned" / "coordination.db"
        with closing(sqlite3.connect(path, timeout=0)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(child.pid, signal.SIGCONT)
            else:
                db.execute("ROLLBACK")
                return


def tables(folder):
    found = {}
    for table in ("one", "two"):
        with closing(sqlite3.connect(folder / f"{table}.db")) as db:
            found[table] = sorted(db.execute(f"SELECT key, record FROM {table}"))
    return found


# In each run a paused driver of a Trident topology is taken over, by the same lease and fence.
@pytest.mark.soak
def test_one_of_two_drivers_works_and_an_owner_that_slept_past_its_lease_changes_nothing(tmp_path):
    where = {"txid": 2, "component": "one"}
    hang = {"point": "write.before", "action": "hang", "where": where}
    first = start(tmp_path, "first.log", {**hang, "token": str(tmp_path / "hang")})
    try:
        # The first one's worker is about to write batch 2.
        wait_for((tmp_path / "hang").exists)
        assert start(tmp_path, "second.log").wait(timeout=120) == 1
        assert f"process {first.pid} on host" in (tmp_path / "second.log").read_text()

        pause_between_transactions(first, tmp_path)
        wait_for(lambda: start(tmp_path, "third.log").wait(timeout=150) == 0)
        committed = EmbeddedStore(tmp_path / "home", "owned").peek()
        before = tables(tmp_path)
        # Now the worker of the first one writes, and its driver wakes.
        (tmp_path / "hang.go").touch()
        wait_for((tmp_path / "hang.woke").exists)
        os.kill(first.pid, signal.SIGCONT)
        assert first.wait(timeout=100) not in (0, None)
    finally:
        first.kill()
        first.wait()

    assert committed.current == 4
    assert EmbeddedStore(tmp_path / "home", "owned").peek() == committed
    assert tables(tmp_path) == before
    for table in ("one", "two"):
        assert contents(tmp_path / f"{table}.db", table) == recount(ROWS, 1)
    assert "taken over" in (tmp_path / "first.log").read_text()
