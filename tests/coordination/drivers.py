"""Other drivers for these tests: processes that hold a store, die, pause and race.

Run as a program, it takes one command per line and answers each with one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waterspout.coordination.embedded import EmbeddedStore
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger

ROOT = Path(__file__).parents[2]
TOPOLOGY = "word-count"
FINGERPRINT = {"spouts": {"sentences": "transactional"}, "states": {"counts": "opaque sqlite"}}


def ledger_at(step: int) -> Ledger:
    """A ledger that is different for each step, and larger than one page of SQLite."""
    ledger = Ledger(TOPOLOGY, FINGERPRINT)
    for txid in range(1, step + 1):
        attempt = TransactionAttempt(txid, 0)
        ledger = ledger.emit(attempt, metadata(txid)).begin(attempt).commit(attempt)
    return ledger


def metadata(txid: int) -> dict[str, Any]:
    offsets = {f"topic-{p}": [txid * 1000 + p, txid * 1000 + p + 999] for p in range(8)}
    files = [f"/data/incoming/2026-01-01/part-{txid:05}-{n:03}.json" for n in range(20)]
    return {"sentences": {"offsets": offsets}, "files": {"names": files, "note": "ünïcödé ☃"}}


def realistic_ledger() -> Ledger:
    """Thirty batches behind it, some of them resolved, one in mid-commit, two more in flight."""
    ledger = Ledger(TOPOLOGY, FINGERPRINT)
    for txid in range(1, 32):
        for number in range(2 if txid % 3 == 1 else 1):
            attempt = TransactionAttempt(txid, number)
            ledger = ledger.emit(attempt, metadata(txid)).begin(attempt)
        if txid < 31:
            ledger = ledger.commit(attempt)
    for txid in (32, 33):
        ledger = ledger.emit(TransactionAttempt(txid, 0), metadata(txid))
    return ledger


class Driver:
    """A process with one store, which does as it is told."""

    def __init__(self, home: Path, *, lease_s: float = 60.0) -> None:
        self._process = subprocess.Popen(
            command(home, lease_s=lease_s),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int:
        """How it has ended; waits for that."""
        return self._process.wait(10)

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, order: str) -> dict[str, Any]:
        self.tell(order)
        return self.answer()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self, *, reap: bool = True) -> None:
        """End it with SIGKILL, and wait until it is a zombie, or until it is gone."""
        self._process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if reap:
            self._process.wait()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return


def command(home: Path, *, lease_s: float = 60.0, durable: bool = True) -> list[str]:
    """The command line of a driver."""
    options = [str(home), repr(lease_s), "durable" if durable else "quick"]
    return [sys.executable, "-m", "tests.coordination.drivers", *options]


def _main(home: str, lease_s: str, durable: str) -> None:
    store = EmbeddedStore(
        Path(home), TOPOLOGY, lease_s=float(lease_s), durable=durable == "durable"
    )
    orders: dict[str, Callable[..., Any]] = {
        "acquire": lambda: store.acquire(FINGERPRINT),
        "save": lambda step: store.save(ledger_at(int(step))),
        "renew": store.renew,
        "release": store.release,
        "current": lambda: store.load().current,
        "name": lambda name: Path("/proc/self/comm").write_bytes(bytes.fromhex(name)),
        "begin": lambda: store._open().execute("BEGIN IMMEDIATE") and None,
        "half": lambda: _write_by_half(store._open()),
        "race": lambda barrier, place: _race(Path(barrier), Path(place)),
    }
    racers: list[EmbeddedStore] = []

    def _race(barrier: Path, place: Path) -> int:
        while racers:
            racers.pop().release()
        racers.append(EmbeddedStore(place, TOPOLOGY, durable=durable == "durable"))
        print(json.dumps({"ready": True}), flush=True)
        while not barrier.exists():
            pass
        return racers[-1].acquire(FINGERPRINT)

    def _write_by_half(db: Any) -> None:
        """Leave a write in its middle: some of it is in the file already, and nobody can read."""
        db.execute("PRAGMA cache_size=1")
        db.execute("BEGIN IMMEDIATE")
        rows = [(f"half {n}", "x" * 3000) for n in range(50)]
        db.executemany("INSERT INTO records VALUES (?, ?, '')", rows)

    for line in sys.stdin:
        name, *arguments = line.split()
        answer: dict[str, Any] = {"order": line.strip()}
        try:
            answer["value"] = orders[name](*arguments)
        except Exception as error:
            answer |= {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
