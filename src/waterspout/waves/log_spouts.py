"""`LogTask`: one task of a spout that is read on executors, as the driver sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from waterspout._letters import DeadLetter
from waterspout.acking.xor import Ids, no_ids
from waterspout.errors import SpoutCrash
from waterspout.topology._graph import Topology
from waterspout.topology._grouping import stable_hash
from waterspout.waves.bolts import Failure
from waterspout.waves.logs import LogRange, LogRead, OpenedLog
from waterspout.waves.spouts import Message, SpoutTask, TaskSettings, messages_of

__all__ = ["LogTask"]

# No root is zero.
_NO_TREE = 0


@dataclass(slots=True)
class _Partition:
    """How far a partition is: handed out, and done."""

    next: int
    reading: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that were handed out for the first time and have not been read yet."""

    order: deque[int] = field(default_factory=deque)
    """Offsets that were emitted, ascending, from the first one that is not done."""

    done: set[int] = field(default_factory=set)
    retries: list[int] = field(default_factory=list)
    delayed: list[tuple[float, int]] = field(default_factory=list)
    """Offsets that are to be read again, and not before when."""

    retrying: set[int] = field(default_factory=set)
    """Offsets that a wave is reading again now."""

    @property
    def committed(self) -> int:
        """The offset before which everything is done."""
        if len(self.done) >= len(self.order) and self.done.issuperset(self.order):
            self.done.difference_update(self.order)  # a whole wave, as a rule
            self.order.clear()
        while self.order and self.order[0] in self.done:
            self.done.remove(self.order.popleft())
        first = [self.order[0]] if self.order else []
        return min([self.next, *(start for start, _ in self.reading), *first])

    def opened(self, start: int, stop: int, offsets: list[int]) -> None:
        """Take note of what was read of a range; what was to be read again may be gone."""
        self.reading = [
            rest
            for begin, end in self.reading
            for rest in ((begin, min(end, start)), (max(begin, stop), end))
            if rest[0] < rest[1]
        ]
        again = {offset for offset in self.retrying if start <= offset < stop}
        self.retrying -= again
        self.done |= again.difference(offsets)
        self.order.extend([each for each in offsets if each not in again] if again else offsets)


class LogTask(SpoutTask):
    """Hands out ranges, and knows for each partition what is done."""

    def __init__(
        self, topology: Topology, task: int, settings: TaskSettings, positions: Mapping[str, int]
    ) -> None:
        super().__init__(topology, task, settings)
        self._spout = self._spec.component
        self._stored = dict(positions)
        self._partitions: dict[Any, _Partition] = {}
        self._told: dict[Any, int] = {}
        self._reading = 0
        self._first = 0
        self._ends: dict[Any, int] = {}
        """Where each partition ended when it was asked last."""

    @property
    def pending(self) -> int:
        """Messages on the way, and those that are being read."""
        return super().pending + self._reading

    @property
    def is_first(self) -> bool:
        """Whether this task opens and closes the spout for all tasks of it."""
        return self._topology.tasks[self.component][0] == self.task

    @property
    def has_retries(self) -> bool:
        """Whether messages are to be read again now."""
        self._end_pauses()
        return any(state.retries for state in self._partitions.values())

    @property
    def has_delayed(self) -> bool:
        """Whether messages are to be read again later."""
        return any(state.delayed for state in self._partitions.values())

    def _end_pauses(self) -> None:
        """See which messages have waited long enough."""
        now = self._clock()
        for state in self._partitions.values():
            if state.delayed:
                state.retries += [offset for due, offset in state.delayed if due <= now]
                state.delayed = [pair for pair in state.delayed if pair[0] > now]

    def open(self) -> None:
        """Open the spout, once for all its tasks."""
        if self.is_first:
            self._call("open", self._conf, self._topology.context(self.task))
            self._call("resume", {_partition(key): at for key, at in self._stored.items()})

    def close(self) -> None:
        """Close the spout, once for all its tasks."""
        if self.is_first:
            super().close()

    def activate(self, active: bool) -> None:
        """Nothing to tell: it is simply not asked."""

    def plan_apart(self) -> list[LogRead]:
        """Return what is to be read again alone: messages that have killed their worker."""
        reads = []
        deadly = self._failing.is_deadly
        for partition, state in self._partitions.items():
            for offset in [n for n in state.retries if deadly((self.task, (partition, n)))]:
                state.retries.remove(offset)
                state.retrying.add(offset)
                ranges = ((partition, offset, offset + 1),)
                reads.append(LogRead(self.task, ranges, self._tracked, 1))
        return reads

    def plan(self, quota: int) -> LogRead | None:
        """Return what to read in the next wave, about `quota` messages at most."""
        self._end_pauses()
        # The source is asked before anything changes: it may raise at any call.
        new = self._new_ranges(quota)
        ranges: list[LogRange] = []
        messages = 0
        for partition, state in self._partitions.items():
            ranges += [(partition, offset, offset + 1) for offset in state.retries]
            messages += len(state.retries)
            state.retrying.update(state.retries)
            state.retries = []
        for (partition, start, stop), count in new:
            state = self._partitions[partition]
            ranges.append((partition, start, stop))
            state.reading.append((start, stop))
            state.next = stop
            self._reading += count
            messages += count
        return LogRead(self.task, tuple(ranges), self._tracked, messages) if ranges else None

    def _new_ranges(self, quota: int) -> list[tuple[LogRange, int]]:
        """Return ranges that were never read, each with about how many messages it has."""
        mine = self._looked_up()
        retried = sum(len(state.retries) for state in self._partitions.values())
        room = quota - retried
        if self._max_pending is not None:
            room = min(room, self._max_pending - self.pending - retried)
        if room <= 0:
            return []
        self._ends = {partition: self._call("end", partition) for partition, _ in mine}
        behind = [(p, s, self._ends[p]) for p, s in mine if self._ends[p] > s.next]
        if not behind:
            return []
        # Each gets its share; who is first, where there is too little for all, changes.
        self._first = (self._first + 1) % len(behind)
        ranges: list[tuple[LogRange, int]] = []
        for number, (partition, state, end) in enumerate(
            behind[self._first :] + behind[: self._first]
        ):
            share = -(-room // (len(behind) - number))
            if share <= 0:
                break
            stop = min(end, self._call("advance", partition, state.next, share))
            # Offsets may be sparse: what they cannot tell is bounded by what was asked for.
            count = min(share, stop - state.next)
            if count > 0:
                ranges.append(((partition, state.next, stop), count))
                room -= count
        return ranges

    def opened(self, log: OpenedLog, born: float = 0.0) -> tuple[Ids, Ids]:
        """Take note of what was read; return the roots and first values of the trees.

        `born` is when the wave began that has read it.
        """
        for (partition, start, stop), offsets, roots in zip(
            log.ranges, log.offsets, log.roots, strict=True
        ):
            numbers = offsets.tolist()
            state = self._partitions[partition]
            state.opened(start, stop, numbers if self._tracked else [])
            self._reading -= len(numbers)
            if self._tracked:
                ids = zip(repeat(partition), numbers)
                fields = zip(ids, repeat(None), repeat("default"), repeat(None), repeat(born))
                self._pending.update(zip(roots.tolist(), messages_of(fields), strict=True))
        # It was a guess, where offsets do not count messages.
        waiting = any(state.reading for state in self._partitions.values())
        self._reading = max(0, self._reading) if waiting else 0
        if not self._tracked or not log.roots:
            return no_ids(), no_ids()
        return np.concatenate(log.roots), np.concatenate(log.values)

    def lag(self) -> int:
        """Return how many offsets lie between what is done and the ends that were seen last."""
        known = [(self._partitions[p], end) for p, end in self._ends.items()]
        return sum(max(0, end - state.committed) for state, end in known)

    def positions(self) -> dict[str, int]:
        """Return, by partition of this task, the offset before which everything is done."""
        return {_key(p): state.committed for p, state in self._partitions.items()}

    def tell_committed(self, stored: Mapping[str, int]) -> bool:
        """Tell the spout of positions stored now and not told before; return if there were any."""
        news = False
        for partition in self._partitions:
            offset = stored[_key(partition)]
            if self._told.get(partition) != offset:
                self._told[partition] = offset
                self._call("committed", partition, offset)
                news = True
        return news

    def failed_unread(
        self, partition: Any, offset: int, component: str, why: str
    ) -> DeadLetter | None:
        """Take note of a message under which its worker died before a tree was begun."""
        self._partitions[partition].opened(offset, offset + 1, [offset])
        self._pending[_NO_TREE] = Message((partition, offset), None, "default")
        return self.failed(Failure(_NO_TREE, component, why, deadly=True))

    def failed(self, failure: Failure) -> DeadLetter | None:
        message = self._pending.get(failure.root)
        try:
            return super().failed(failure)
        except SpoutCrash:
            # Its values could not be read for the letter. It is sent again, and when it fails again
            # they are asked for once more.
            if message is not None:
                self._fail(message)
            raise

    def _looked_up(self) -> list[tuple[Any, _Partition]]:
        """Return this task's partitions; new ones begin where they were stored, or at the start.

        A partition belongs to a task by its own value: others may come and go.
        """
        tasks = self._topology.tasks[self.component]
        index = tasks.index(self.task)
        found = []
        for partition in self._call("partitions"):
            owner = partition if isinstance(partition, int) else stable_hash([partition])
            if owner % len(tasks) != index:
                continue
            if partition not in self._partitions:
                stored = self._stored.get(_key(partition))
                start = self._call("begin", partition) if stored is None else stored
                self._partitions[partition] = _Partition(start)
            found.append((partition, self._partitions[partition]))
        return found

    def acked(self, roots: Iterable[int]) -> int:
        found = map(self._pending.pop, roots, repeat(None))
        ids = [message[0] for message in found if message is not None]
        if len(self._failing):
            for each in ids:
                self._failing.forget((self.task, each))
        for partition, state in self._partitions.items():
            state.done.update([offset for owner, offset in ids if owner == partition])
        return len(ids)

    def _ack(self, message: Message) -> None:
        self._failing.forget((self.task, message.id))
        partition, offset = message.id
        self._partitions[partition].done.add(offset)

    def _fail(self, message: Message) -> None:
        partition, offset = message.id
        state, backoff = self._partitions[partition], self._spout.retry_backoff
        pause_s = 0.0
        if backoff is not None:
            pause_s = backoff.pause_s(self._failing.count_of((self.task, message.id)))
        if pause_s > 0:
            state.delayed.append((self._clock() + pause_s, offset))
        else:
            state.retries.append(offset)

    def _values_of(self, message: Message) -> tuple[Any, ...]:
        if message.values is not None:
            return message.values
        partition, offset = message.id
        for _, values in self._call("read", partition, offset, offset + 1):
            return tuple(values)
        return ()


def _key(partition: Any) -> str:
    """Return the partition as a key of JSON that tells 1 from "1"."""
    return f"{partition}" if isinstance(partition, int) else f"={partition}"


def _partition(key: str) -> int | str:
    """Return the partition of a key."""
    return key[1:] if key.startswith("=") else int(key)
