"""kill -9 of the driver at every named point, on Spark; the same command goes on, exactly."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.spark import killing
from tests.spark.killing import ROOT
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.faults import BATCH_POINTS, ENVIRONMENT_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

CHILD = "tests.semantics.word_count_child"
WORDS = [f"word{i}" for i in range(50)]
DRIVER_POINTS = [p for p in BATCH_POINTS if p != "processing"]


def write_sentences(folder: Path, files: int, seed: int = 7) -> None:
    rng = random.Random(seed)
    (folder / "in").mkdir()
    for number in range(files):
        lines = [" ".join(rng.choices(WORDS, k=6)) for _ in range(40)]
        (folder / "in" / f"{number:03}.txt").write_text("\n".join(lines) + "\n")


def recount(folder: Path, files: set[str] | None = None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in sorted((folder / "in").iterdir()):
        if files is None or str(path) in files:
            counts.update(path.read_text().split())
    return counts


def run_child(folder: Path, faults: Sequence[dict] = (), remote: str = "") -> int:
    return killing.run_child(CHILD, folder, faults, remote)


def committed(folder: Path) -> int:
    ledger = EmbeddedStore(folder / "home", "killed").peek()
    return 0 if ledger is None else ledger.current - 1


def table(folder: Path) -> dict[str, int]:
    with sqlite3.connect(folder / "counts.db") as db:
        return dict(db.execute("SELECT word, count FROM word_counts"))


def total(folder: Path) -> int:
    with sqlite3.connect(folder / "counts.db") as db:
        return db.execute("SELECT count FROM total").fetchone()[0]


def assert_exact(folder: Path) -> None:
    assert table(folder) == recount(folder)
    assert total(folder) == sum(recount(folder).values())


# In process, every point is tried each time, and the demo's test kills a driver in mid-commit.
@pytest.mark.soak
def test_kill_at_a_point_and_the_same_command_goes_on_exactly(tmp_path, connect_server):
    # Each start recovers from one kill and is killed at the next point, so that every point
    # is passed, killed at, and recovered from, with one start each.
    remote = connect_server.url
    write_sentences(tmp_path, files=len(DRIVER_POINTS) + 4)

    for point in DRIVER_POINTS:
        before = committed(tmp_path)
        fault = {"point": point, "action": "kill", "where": {"txid": before + 1}}
        assert run_child(tmp_path, [fault], remote) == -signal.SIGKILL, point
        assert committed(tmp_path) - before in (0, 1), point

    (tmp_path / "kill-in-processing").touch()
    assert run_child(tmp_path) == -signal.SIGKILL

    assert run_child(tmp_path, remote=remote) == 0
    assert committed(tmp_path) == len(DRIVER_POINTS) + 4
    assert_exact(tmp_path)


def start_child(folder: Path, fault: dict) -> subprocess.Popen:
    env = {**os.environ}
    env[ENVIRONMENT_VARIABLE] = json.dumps([fault])
    with open(folder / "first.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", CHILD, str(folder)], cwd=ROOT, env=env, stdout=log, stderr=log
        )


def wait_for(condition, timeout_s=100):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)


def pause_between_transactions(child: subprocess.Popen, folder: Path) -> None:
    """Stop a child at a moment when none of its threads holds the lock of the store's file."""
    while True:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        with sqlite3.connect(folder / "home" / "killed" / "coordination.db", timeout=0) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(child.pid, signal.SIGCONT)
            else:
                db.execute("ROLLBACK")
                return


@pytest.mark.soak
def test_a_paused_driver_that_was_taken_over_changes_nothing(tmp_path):
    write_sentences(tmp_path, files=3)
    hang = {"point": "write.before", "action": "hang", "where": {"txid": 2}}
    first = start_child(tmp_path, {**hang, "token": str(tmp_path / "hang")})
    try:
        wait_for((tmp_path / "hang").exists)
        pause_between_transactions(first, tmp_path)

        wait_for(lambda: run_child(tmp_path) == 0)
        assert_exact(tmp_path)
        before = table(tmp_path)
        (tmp_path / "hang.go").touch()
        os.kill(first.pid, signal.SIGCONT)
        assert first.wait(timeout=60) not in (0, None)
    finally:
        first.kill()
        first.wait()

    assert committed(tmp_path) == 3
    assert table(tmp_path) == before
    assert_exact(tmp_path)
    assert "taken over" in (tmp_path / "first.log").read_text()


@pytest.mark.soak
def test_a_second_driver_is_refused_while_the_first_one_runs(tmp_path):
    write_sentences(tmp_path, files=3)
    hang = {"point": "mark.before", "action": "hang", "where": {"txid": 2}}
    first = start_child(tmp_path, {**hang, "token": str(tmp_path / "hang")})
    try:
        wait_for((tmp_path / "hang").exists)

        assert run_child(tmp_path) == 1
        (tmp_path / "hang.go").touch()
        assert first.wait(timeout=60) == 0
    finally:
        first.kill()
        first.wait()

    refusal = (tmp_path / "child.log").read_text()
    assert f"process {first.pid} on host" in refusal
    assert_exact(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1])
def test_random_kills_of_the_driver_over_and_over_stay_exact(tmp_path, connect_server, seed):
    rng, remote = random.Random(seed), connect_server.url
    write_sentences(tmp_path, files=40, seed=seed)

    for _ in range(4):
        txid = committed(tmp_path) + rng.randrange(1, 4)
        point = rng.choice(DRIVER_POINTS)
        fault = {"point": point, "action": "kill", "nth": rng.randrange(1, 3)}
        ended = run_child(tmp_path, [{**fault, "where": {"txid": txid}}], remote)
        assert ended in (0, -signal.SIGKILL)
        with sqlite3.connect(tmp_path / "counts.db") as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    assert run_child(tmp_path) == 0  # on a Spark of its own
    assert committed(tmp_path) == 40
    assert_exact(tmp_path)
