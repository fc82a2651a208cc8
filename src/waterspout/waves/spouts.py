"""Spout tasks in the driver: messages out, acks and fails in, failures counted.

Nothing here knows about stores or waves: a task hands out frames with the trees it began, and is
told later which of them are over. A message that has failed too often is handed out as a
`Letter`, to be put aside, and is acked once that is done.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from waterspout.acking.xor import Ids, combine, draw, no_ids
from waterspout.topology.collector import SpoutCollector
from waterspout.topology.graph import Topology
from waterspout.waves.bolts import Failure
from waterspout.waves.frames import Frame, unpack
from waterspout.waves.routing import make_outlets
from waterspout.waves.sealing import Anchors, seal

__all__ = ["Emission", "Letter", "PulledSpout", "ReplayId", "SpoutCrash", "SpoutTask"]

# Calls of next_tuple for one look at a spout: enough that looking costs nothing, few enough that
# several spouts take turns.
_CALLS_PER_LOOK = 64


# Messages whose failures are counted at once.
_FAILING_MAX = 100_000


class SpoutCrash(Exception):
    """Raised when a method of a spout has raised; its cause is what it raised."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that could not be processed."""

    component: str
    stream: str
    values: tuple[Any, ...]
    message_id: str
    failed_in: str
    error: str
    failures: int
    first_failed: float
    last_failed: float
    id: int | None = None
    """Its number in the dead letters; None: it is not there yet."""

    shown: str = ""
    """The values as text, for those that cannot be stored otherwise."""

    wanted: bool = False
    """Whether it is to be sent through again."""

    can_be_replayed: bool = True


@dataclass(frozen=True, slots=True)
class ReplayId:
    """The message id of a dead letter that is sent through again."""

    letter: Letter


@dataclass(slots=True)
class Emission:
    """What a task has emitted since it was asked last."""

    frames: list[Frame]
    roots: Ids
    values: Ids
    """The first value of each tree: the XOR of the ids of the tuples it begins as."""


@dataclass(slots=True)
class _Failing:
    """How often a message has failed, and since when."""

    count: int = 0
    since: float = field(default_factory=time.time)


class SpoutTask(ABC):
    """One task of any spout: its messages on the way, and those that were sent again."""

    def __init__(
        self,
        topology: Topology,
        task: int,
        conf: Mapping[str, Any],
        *,
        tracked: bool,
        max_replays: int,
    ) -> None:
        self.task = task
        self.component = topology.component_of[task]
        self._topology = topology
        self._spec = topology.components[self.component]
        self._conf = {**conf, **self._spec.configuration}
        self._tracked = tracked
        self._max_replays = max_replays
        self._max_pending = self._conf.get("topology.max.spout.pending") or None
        self._failing: dict[Any, _Failing] = {}
        self._pending: dict[int, Any] = {}
        self._aside: list[Any] = []
        self._collector = SpoutCollector(self.component, None if tracked else self._ack_now)
        self._turn = 0
        self._new_outlets()

    @property
    def pending(self) -> int:
        """Messages on the way, tracked ones only."""
        return len(self._pending) + len(self._collector.messages)

    @property
    def emitted(self) -> int:
        """Tuples emitted and not yet handed out."""
        return self._collector.emitted

    @property
    def has_room(self) -> bool:
        """Whether it may be asked for more."""
        return self._max_pending is None or self.pending < self._max_pending

    def replay(self, letter: Letter) -> None:
        """Send a dead letter through again."""
        outlet = self._collector._outlet(letter.stream, direct=False)
        fitting = outlet.fit(letter.values)
        messages = self._collector.messages
        messages.append((ReplayId(letter), fitting, letter.stream))
        anchor = len(messages) - 1 if self._tracked else -1
        outlet.send(outlet.route(fitting), fitting, anchor)
        self._collector.emitted += 1

    def hand_out(self, ids: np.random.Generator) -> Emission:
        """Return what was emitted as frames, and begin a tree for each message."""
        collector = self._collector
        messages, collector.messages, collector.emitted = collector.messages, [], 0
        roots = draw(ids, len(messages)) if self._tracked else no_ids()
        sealed = seal(
            self.task,
            collector._outlets.values(),
            Anchors(roots if len(roots) else None),
            ids,
        )
        self._turn += 1
        self._new_outlets()
        if self._tracked:
            self._pending.update(zip(roots.tolist(), messages, strict=True))
        known, values = combine(sealed.roots, sealed.edges)
        first = np.zeros(len(roots), np.uint64)
        if len(known):
            places = np.minimum(np.searchsorted(known, roots), len(known) - 1)
            found = known[places] == roots
            first[found] = values[places[found]]
        return Emission(sealed.frames, roots, first)

    def acked(self, roots: Iterable[int]) -> list[Letter]:
        """Take note of complete trees; return the letters that were replayed with success."""
        done: list[Letter] = []
        for root in roots:
            message = self._pending.pop(root, None)
            if message is None:
                continue
            if isinstance(message[0], ReplayId):
                done.append(message[0].letter)
            else:
                self._ack(message)
        return done

    def failed(self, failure: Failure) -> Letter | None:
        """Take note of a failed tree; return a letter if the message has failed too often.

        The caller puts the letter aside durably and then calls `put_aside`.
        """
        message = self._pending.pop(failure.root, None)
        if message is None:
            return None
        key = message[0]
        failing = self._failing.pop(key, None) or _Failing()
        failing.count += 1
        self._failing[key] = failing
        if len(self._failing) > _FAILING_MAX:
            # Messages that went elsewhere after they failed here; the oldest first.
            del self._failing[next(iter(self._failing))]
        if failing.count <= self._max_replays:
            if isinstance(key, ReplayId):
                self.replay(key.letter)
            else:
                self._fail(message)
            return None
        self._aside.append(message)
        old = key.letter if isinstance(key, ReplayId) else None
        return self._letter(message, failure, failing, old)

    def put_aside(self) -> None:
        """Ack the messages whose letters are safe now."""
        aside, self._aside = self._aside, []
        for message in aside:
            self._failing.pop(message[0], None)
            if not isinstance(message[0], ReplayId):
                self._ack(message)

    def _letter(
        self, message: Any, failure: Failure, failing: _Failing, old: Letter | None
    ) -> Letter:
        msg_id, _, stream = message
        letter = Letter(
            self.component,
            stream,
            self._values_of(message),
            _shown(msg_id),
            failure.component,
            failure.error,
            failing.count,
            failing.since,
            time.time(),
        )
        if old is None:
            return letter
        return replace(
            letter,
            id=old.id,
            message_id=old.message_id,
            first_failed=old.first_failed,
            failures=old.failures + letter.failures,
        )

    def _values_of(self, message: Any) -> tuple[Any, ...]:
        values: tuple[Any, ...] = message[1]
        return values

    def _new_outlets(self) -> None:
        self._collector._outlets = make_outlets(self._topology, self.task, self._turn)

    def _ack(self, message: Any) -> None:
        self._failing.pop(message[0], None)
        self._call("ack", message[0])

    def _fail(self, message: Any) -> None:
        self._call("fail", message[0])

    def _ack_now(self, msg_id: Any) -> None:
        self._call("ack", msg_id)

    @abstractmethod
    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the spout; what it raises becomes a SpoutCrash."""

    @abstractmethod
    def open(self) -> None:
        """Connect to the source."""

    @abstractmethod
    def close(self) -> None:
        """Give up the source; never raises."""

    @abstractmethod
    def activate(self, active: bool) -> None:
        """Tell the spout that it will, or will not, be asked for a while."""


class PulledSpout(SpoutTask):
    """A spout whose `next_tuple` is called here."""

    def __init__(
        self,
        topology: Topology,
        task: int,
        conf: Mapping[str, Any],
        pickled: bytes,
        *,
        tracked: bool,
        max_replays: int,
        report: Callable[[BaseException], None],
    ) -> None:
        super().__init__(topology, task, conf, tracked=tracked, max_replays=max_replays)
        self._pickled = pickled
        self._report = report
        # The first task is the user's own object: it can be looked at, and fed.
        first = topology.tasks[self.component][0] == task
        self._spout: Any = self._spec.component if first else unpack(pickled)

    def open(self) -> None:
        """Open the spout."""
        self._collector._report = self._report
        self._call("open", self._conf, self._topology.context(self.task), self._collector)

    def restart(self) -> None:
        """Go on with a new copy; what the old one had on the way, its source must give again."""
        self.close()
        self._pending.clear()
        self._collector.messages.clear()
        self._collector.emitted = 0
        self._new_outlets()
        self._spout = unpack(self._pickled)
        self.open()

    def ask(self) -> bool:
        """Ask for more; False if there was nothing."""
        for _ in range(_CALLS_PER_LOOK):
            if not self.has_room:
                return True
            before = self._collector.emitted
            self._call("next_tuple")
            if self._collector.emitted == before:
                return False
        return True

    def close(self) -> None:
        """Close the spout; what it raises is only reported."""
        try:
            self._spout.close()
        except Exception as error:
            self._report(error)

    def activate(self, active: bool) -> None:
        """Pass it on."""
        self._call("activate" if active else "deactivate")

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._spout, method)(*arguments)
        except Exception as error:
            raise SpoutCrash(
                f"spout {self.component!r} (task {self.task}) raised in {method}: "
                f"{type(error).__name__}: {error}"
            ) from error


def _shown(msg_id: Any) -> str:
    text = repr(msg_id)
    return text if len(text) <= 200 else f"{text[:200]}..."
