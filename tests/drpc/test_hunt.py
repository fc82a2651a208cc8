"""The hunt for a value of an uncommitted batch: 10,000 reads over HTTP, under kills and replays.

`tests/semantics/test_drpc_reads.py` hunts in process, each run, at every point of a commit. Here
the driver is a real one, killed with SIGKILL in the middle of a commit, again and again.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.killing import REMOTE, ROOT
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.drpc import DRPCClient, DRPCExecutionException
from waterspout.faults import ENVIRONMENT_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1500)]

CHILD = "tests.drpc.hunted_child"
FILES = 400
READS = 10_000
READERS = 8

# Where the drivers die, one after the other; and what makes them replay a batch before that.
KILLS = ("write.after", "mark.before", "mark.after", "head.after", "settle.before")
REPLAY = {"point": "write.after", "action": "raise", "nth": 3}


def test_no_reader_ever_sees_a_value_of_a_batch_that_has_not_committed(tmp_path, connect_server):
    """After k files a word has come k * k times: a value of anything else is no square.

    A file is a batch. So the k of an answer is at most the batches that had committed just after
    it came, and at least those that it says it saw.
    """
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number:04}.txt").write_text("a b\n" * (2 * number + 1))
    hunt = Hunt(tmp_path)
    for number, point in enumerate(KILLS):
        kill = {"point": point, "action": "kill", "nth": 6 + number}
        with driver(tmp_path, [REPLAY, kill], connect_server.url) as (child, url):
            hunt.read(url, until=lambda child=child: child.poll() is not None)
            assert child.wait(60) == -9, f"not killed at {point}: see {tmp_path}/child.log"
    with driver(tmp_path, [REPLAY], connect_server.url) as (child, url):
        hunt.read(url, until=lambda: hunt.reads >= READS)

    assert hunt.wrong == []
    assert hunt.reads >= READS
    assert hunt.highest > 2 * len(KILLS), "hardly a batch was committed"


class Hunt:
    """Readers beside each other, and what was wrong with what they read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self.reads = self.highest = 0
        self.wrong: list[object] = []

    def read(self, url: str, until) -> None:
        """Read until something is so; a driver that is killed ends its readers' calls."""
        threads = [threading.Thread(target=self._reader, args=(url, until)) for _ in range(READERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _reader(self, url: str, until) -> None:
        store = EmbeddedStore(self._folder / "home", "hunted")
        with DRPCClient(url, retries=0) as client:
            while not until():
                try:
                    answer = client.execute("counts", "a b", timeout=20)
                except DRPCExecutionException as error:
                    if error.kind == "FAILED_REQUEST":
                        self.wrong.append(error)
                        return
                    time.sleep(0.01)
                    continue
                self._look(answer, store.peek().current - 1)

    def _look(self, answer, committed: int) -> None:
        (first,), (second,) = answer
        with self._lock:
            self.reads += 1
            for count in (first or 0, second or 0):
                files = math.isqrt(count)
                self.highest = max(self.highest, files)
                if files * files != count or not answer.txid <= files <= committed:
                    self.wrong.append((count, answer.txid, committed))


@contextmanager
def driver(folder: Path, faults: list[dict], remote: str):
    """Start a driver; yield its process and the address of its server, and end it."""
    (folder / "url").unlink(missing_ok=True)
    env = {**os.environ, ENVIRONMENT_VARIABLE: json.dumps(faults), REMOTE: remote}
    with open(folder / "child.log", "ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD, str(folder)], cwd=ROOT, env=env, stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + 240
            while not (folder / "url").exists():
                assert child.poll() is None, f"it ended: see {folder}/child.log"
                assert time.monotonic() < deadline, "it was not served in time"
                time.sleep(0.02)
            yield child, (folder / "url").read_text()
        finally:
            child.kill()
            child.wait()
