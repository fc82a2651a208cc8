"""A driver in a process of its own that holds a topology in ZooKeeper, and does as it is told.

Run as a program, it takes one command per line and answers each with one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.coordination.drivers import FINGERPRINT, ROOT, TOPOLOGY, Driver, ledger_at
from waterspout.coordination.zookeeper import ZooKeeperStore


class ZooKeeperDriver(Driver):
    """A process with one store, which does as it is told."""

    def __init__(self, address: str, root: str, *, session_s: float = 6.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, address, root, repr(session_s)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def _main(address: str, root: str, session_s: str) -> None:
    def new_store(root: str) -> ZooKeeperStore:
        return ZooKeeperStore([address], TOPOLOGY, root=root, session_s=float(session_s))

    store = new_store(root)
    racers: list[ZooKeeperStore] = []

    def race(barrier: str, place: str) -> int:
        while racers:
            racers.pop().release()
        racers.append(new_store(place))
        print(json.dumps({"ready": True}), flush=True)
        while not Path(barrier).exists():
            pass
        return racers[-1].acquire(FINGERPRINT)

    orders: dict[str, Callable[..., Any]] = {
        "acquire": lambda: store.acquire(FINGERPRINT),
        "save": lambda step: store.save(ledger_at(int(step))),
        "renew": store.renew,
        "release": store.release,
        "race": race,
    }
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
