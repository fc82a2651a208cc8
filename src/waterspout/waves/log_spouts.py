"""`LogTask`: one task of a spout that is read on executors, as the driver sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from waterspout.acking.xor import Ids
from waterspout.topology.graph import Topology
from waterspout.waves.logs import LogRange, LogRead, OpenedLog
from waterspout.waves.spouts import SpoutCrash, SpoutTask

__all__ = ["LogTask"]


@dataclass(slots=True)
class _Partition:
    """How far a partition is: handed out, and done."""

    next: int
    reading: int | None = None
    """Where the range began that a wave is reading now."""

    order: deque[int] = field(default_factory=deque)
    """Offsets that were emitted, ascending, from the first one that is not done."""

    done: set[int] = field(default_factory=set)
    retries: list[int] = field(default_factory=list)

    @property
    def committed(self) -> int:
        """The offset before which everything is done."""
        while self.order and self.order[0] in self.done:
            self.done.remove(self.order.popleft())
        if self.order:
            return self.order[0]
        return self.next if self.reading is None else self.reading


class LogTask(SpoutTask):
    """Hands out ranges, and knows for each partition what is done."""

    def __init__(
        self,
        topology: Topology,
        task: int,
        conf: Mapping[str, Any],
        positions: Mapping[str, int],
        *,
        tracked: bool,
        max_replays: int,
        report: Callable[[BaseException], None],
    ) -> None:
        super().__init__(topology, task, conf, tracked=tracked, max_replays=max_replays)
        self._spout = self._spec.component
        self._report = report
        self._stored = dict(positions)
        self._partitions: dict[Any, _Partition] = {}
        self._told: dict[Any, int] = {}
        self._reading = 0

    @property
    def pending(self) -> int:
        """Messages on the way, and those that are being read."""
        return super().pending + self._reading

    @property
    def is_first(self) -> bool:
        """Whether this task opens and closes the spout for all tasks of it."""
        return self._topology.tasks[self.component][0] == self.task

    def open(self) -> None:
        """Open the spout, once for all its tasks."""
        if self.is_first:
            self._call("open", self._conf, self._topology.context(self.task))

    def close(self) -> None:
        """Close the spout, once for all its tasks."""
        if self.is_first:
            try:
                self._spout.close()
            except Exception as error:
                self._report(error)

    def activate(self, active: bool) -> None:
        """Nothing to tell: it is simply not asked."""

    def plan(self, quota: int) -> LogRead | None:
        """Return what to read in the next wave, about `quota` messages at most."""
        ranges: list[LogRange] = []
        for partition, state in self._looked_up():
            ranges += [(partition, offset, offset + 1) for offset in state.retries]
            state.retries = []
        retried = len(ranges)
        quota = max(0, quota)
        room = quota if self._max_pending is None else min(quota, self._max_pending - self.pending)
        mine = self._looked_up() if room > retried else []
        for position, (partition, state) in enumerate(mine):
            share = (room - retried) // (len(mine) - position)
            end = self._call("end", partition)
            if share <= 0 or end <= state.next:
                continue
            stop = min(end, self._call("advance", partition, state.next, share))
            # Offsets may be sparse: what they cannot tell is bounded by what was asked for.
            count = min(share, stop - state.next)
            ranges.append((partition, state.next, stop))
            state.reading = state.next
            state.next = stop
            room -= count
            self._reading += count
        return LogRead(self.task, tuple(ranges), self._tracked) if ranges else None

    def opened(self, log: OpenedLog) -> tuple[Ids, Ids]:
        """Take note of what was read; return the roots and first values of the trees."""
        self._reading = 0
        for state in self._partitions.values():
            state.reading = None
        if not self._tracked:
            return np.empty(0, np.uint64), np.empty(0, np.uint64)
        for partition, offsets, roots in zip(log.partitions, log.offsets, log.roots, strict=True):
            state = self._partitions[partition]
            numbers = offsets.tolist()
            last = state.order[-1] if state.order else -1
            # A retried offset stands in the order already.
            state.order.extend([n for n in numbers if n > last] if last >= 0 else numbers)
            messages = [((partition, n), None, "default") for n in numbers]
            self._pending.update(zip(roots.tolist(), messages, strict=True))
        return np.concatenate(log.roots), np.concatenate(log.values)

    def positions(self) -> dict[str, int]:
        """Return, by partition of this task, the offset before which everything is done."""
        return {_key(p): state.committed for p, state in self._partitions.items()}

    def tell_committed(self, stored: Mapping[str, int]) -> None:
        """Tell the spout of positions that are stored now and were not told before."""
        for partition in self._partitions:
            offset = stored[_key(partition)]
            if self._told.get(partition) != offset:
                self._told[partition] = offset
                self._call("committed", partition, offset)

    def _looked_up(self) -> list[tuple[Any, _Partition]]:
        """Return this task's partitions; new ones begin where they were stored, or at the start."""
        tasks = self._topology.tasks[self.component]
        index = tasks.index(self.task)
        everything = sorted(self._call("partitions"), key=lambda p: (str(type(p)), p))
        for partition in everything[index :: len(tasks)]:
            if partition not in self._partitions:
                stored = self._stored.get(_key(partition))
                start = self._call("begin", partition) if stored is None else stored
                self._partitions[partition] = _Partition(start)
        return list(self._partitions.items())

    def _ack(self, message: Any) -> None:
        key = message[0]
        self._failing.pop(key, None)
        partition, offset = key
        self._partitions[partition].done.add(offset)

    def _fail(self, message: Any) -> None:
        partition, offset = message[0]
        self._partitions[partition].retries.append(offset)

    @property
    def has_retries(self) -> bool:
        """Whether messages wait to be read again."""
        return any(state.retries for state in self._partitions.values())

    def _values_of(self, message: Any) -> tuple[Any, ...]:
        if message[1] is not None:
            return super()._values_of(message)
        partition, offset = message[0]
        for _, values in self._call("read", partition, offset, offset + 1):
            return tuple(values)
        return ()

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._spout, method)(*arguments)
        except Exception as error:
            raise SpoutCrash(
                f"spout {self.component!r} (task {self.task}) raised in {method}: "
                f"{type(error).__name__}: {error}"
            ) from error


def _key(partition: Any) -> str:
    """Return the partition as a key of JSON that tells 1 from "1"."""
    return f"{partition}" if isinstance(partition, int) else f"={partition}"
