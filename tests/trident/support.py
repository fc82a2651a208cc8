"""What tests of topologies share: a state that keeps its rows to look at, and short ways to run."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waterspout import Config, Run, submit
from waterspout.state import State, StateFactory
from waterspout.trident import Filter, ReducerAggregator, StateUpdater, Stream, TridentTopology

_numbers = itertools.count(1)
_kept: dict[str, list[tuple[int, tuple[Any, ...]]]] = {}


class KeptRows(State):
    """Appends rows to a list of this process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._txid = 0

    def begin_commit(self, txid: int | None) -> None:
        self._txid = txid or 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        _kept.setdefault(self._name, []).extend((self._txid, row) for row in rows)


@dataclass(frozen=True)
class Capture(StateFactory):
    """A user's own kind of state, which promises nothing: a replay is kept twice."""

    name: str = field(default_factory=lambda: f"capture-{next(_numbers)}")

    driver_only = True
    volatile = True

    def make_state(self, conf: Config, partition_index: int, num_partitions: int) -> KeptRows:
        return KeptRows(self.name)

    def location(self) -> str:
        return f"list:{self.name}"

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Every row, in an order of their own: Spark promises none."""
        return sorted((row for _, row in _kept.get(self.name, [])), key=repr)

    @property
    def in_order(self) -> list[tuple[Any, ...]]:
        """Every row, as they came: of one partition, in the order in which they were made."""
        return [row for _, row in _kept.get(self.name, [])]

    @property
    def batches(self) -> dict[int, list[tuple[Any, ...]]]:
        """The rows of each batch that had some."""
        found: dict[int, list[tuple[Any, ...]]] = {}
        for txid, row in _kept.get(self.name, []):
            found.setdefault(txid, []).append(row)
        return {txid: sorted(rows, key=repr) for txid, rows in sorted(found.items())}


class Keep(StateUpdater[KeptRows]):
    """Keeps every tuple, and emits it as a new value."""

    def update_state(self, state, tuples, collector):
        state.add([tuple.values for tuple in tuples])


class Meddling(Filter):
    """Keeps every row, and changes the file that they come from when it has seen one."""

    def __init__(self, path: Path, change: str) -> None:
        self._path, self._change = path, change

    def is_keep(self, tuple):
        if self._change == "deleted":
            self._path.unlink(missing_ok=True)
        elif self._path.stat().st_size < 20:
            with self._path.open("a") as file:
                file.write("a line that came while it was read\n")
        return True


def capture(stream: Stream, *fields: str) -> Capture:
    """Keep some fields of a stream (all, if none is named) and return where."""
    kept = Capture()
    stream.partition_persist(kept, fields or stream.fields, Keep())
    return kept


def finish(
    topology: TridentTopology, spark: Any, config: Config | None = None, timeout: float = 60
) -> Run:
    """Run a topology on Spark until its sources have nothing more; return the ended run."""
    run = submit(topology, spark, config or Config(retry_backoff_millis=1))
    try:
        run.process_all_available(timeout=timeout)
    finally:
        run.stop()
    return run


def put(path: Path, text: str | bytes) -> Path:
    """Move a complete file in place, as a source must."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(text.encode() if isinstance(text, str) else text)
    os.replace(hidden, path)
    return path


def wait_for(condition: Callable[[], Any], timeout_s: float = 60) -> None:
    """Return as soon as a condition holds; fail if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)


class Total(ReducerAggregator[int]):
    """Adds numbers up, in Python, without a combiner."""

    def init(self):
        return 0

    def reduce(self, value, tuple):
        return value + tuple[0]

    def output_types(self, inputs):
        return ["bigint"]
