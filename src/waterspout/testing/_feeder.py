"""`FeederSpout` and `AckFailTracker`: messages by hand, and what has become of them."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from waterspout.topology._collector import SpoutCollector
from waterspout.topology._component import Spout
from waterspout.topology._context import TopologyContext

__all__ = ["AckFailTracker", "FeederSpout"]


class AckFailTracker:
    """Counts the acks and fails of message ids; every method may be called from any thread."""

    def __init__(self) -> None:
        self._acks: Counter[Any] = Counter()
        self._fails: Counter[Any] = Counter()
        self._lock = threading.Lock()

    @property
    def num_acks(self) -> int:
        """Acks of all messages."""
        return sum(self._acks.values())

    @property
    def num_fails(self) -> int:
        """Fails of all messages."""
        return sum(self._fails.values())

    @property
    def acks(self) -> dict[Any, int]:
        """Acks by message id."""
        with self._lock:
            return dict(self._acks)

    @property
    def fails(self) -> dict[Any, int]:
        """Fails by message id."""
        with self._lock:
            return dict(self._fails)

    def is_acked(self, msg_id: Any) -> bool:
        """Whether a message was acked."""
        return self._acks[msg_id] > 0

    def is_failed(self, msg_id: Any) -> bool:
        """Whether a message has failed, at least once."""
        return self._fails[msg_id] > 0

    def ack(self, msg_id: Any) -> None:
        """Count an ack."""
        with self._lock:
            self._acks[msg_id] += 1

    def fail(self, msg_id: Any) -> None:
        """Count a fail."""
        with self._lock:
            self._fails[msg_id] += 1


class _Feed:
    def __init__(self) -> None:
        self.messages: deque[tuple[Sequence[Any], Any]] = deque()
        self.tracker = AckFailTracker()
        self.by_id: dict[Any, Sequence[Any]] = {}


_feeds: dict[int, _Feed] = {}
_numbers = itertools.count(1)


class FeederSpout(Spout):
    """Emits what a test feeds. All tasks and copies of a feeder share one feed, in this process.

    As in Storm, a message that failed is not emitted again, unless `replay=True`.
    """

    def __init__(self, fields: str | Sequence[str], *, replay: bool = False) -> None:
        self.output_fields = (fields,) if isinstance(fields, str) else tuple(fields)
        self._replay = replay
        self._number = next(_numbers)
        _feeds[self._number] = _Feed()

    @property
    def tracker(self) -> AckFailTracker:
        """What has become of the messages."""
        return self._feed.tracker

    def feed(self, values: Sequence[Any], msg_id: Any = None) -> None:
        """Hand over a message; with an id it is tracked."""
        self._feed.messages.append((values, msg_id))

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutCollector
    ) -> None:
        self._collector = collector

    def next_tuple(self) -> None:
        try:
            values, msg_id = self._feed.messages.popleft()
        except IndexError:
            return
        if msg_id is not None and self._replay:
            self._feed.by_id[msg_id] = values
        self._collector.emit(values, msg_id=msg_id)

    def lag(self) -> int:
        return len(self._feed.messages)

    def ack(self, msg_id: Any) -> None:
        self._feed.by_id.pop(msg_id, None)
        self._feed.tracker.ack(msg_id)

    def fail(self, msg_id: Any) -> None:
        self._feed.tracker.fail(msg_id)
        if self._replay:
            self._feed.messages.append((self._feed.by_id[msg_id], msg_id))

    @property
    def _feed(self) -> _Feed:
        # A copy that was unpickled in another process finds an empty feed there.
        return _feeds.setdefault(self._number, _Feed())

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_collector"}
