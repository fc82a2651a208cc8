"""Spout tasks in the driver: messages out, acks and fails in, failures counted.

Nothing here knows about stores or waves: a task hands out frames with the trees it began, and is
told later which of them are over. A message that has failed too often is handed out as a
`DeadLetter`, to be put aside, and is acked once that is done.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from waterspout._letters import DeadLetter, stored_form
from waterspout._safe_repr import described, shown
from waterspout.acking.xor import Ids, draw_roots, no_ids
from waterspout.errors import OutageError, SpoutCrash
from waterspout.topology._collector import SpoutCollector
from waterspout.topology._graph import Topology
from waterspout.topology._ports import UNANCHORED, Port
from waterspout.waves.bolts import Failure
from waterspout.waves.failures import Failing, FailureCounts, digest
from waterspout.waves.frames import Frame, Unfit, unpack, weeded
from waterspout.waves.outlets import Anchors, first_values, make_outlets, seal

__all__ = [
    "Emission",
    "Message",
    "PulledSpout",
    "ReplayId",
    "SpoutTask",
    "TaskSettings",
    "messages_of",
]

# Most calls of next_tuple for one look at a spout: enough that looking costs nothing, few enough
# that several spouts take turns.
_CALLS_PER_LOOK = 64


class Message(NamedTuple):
    """A tracked message of a spout. The values of one in a log are read again when needed."""

    id: Any
    values: tuple[Any, ...] | None
    stream: str
    target: int | None = None
    """The task it was sent to directly."""
    born: float = 0.0
    """When it was emitted; of one in a log, when the wave began that has read it."""


def messages_of(fields: Iterable[Iterable[Any]]) -> Iterator[Message]:
    """Return messages made of their fields: as `Message._make`, without a call for each."""
    return map(tuple.__new__, repeat(Message), fields)


@dataclass(frozen=True, slots=True)
class ReplayId:
    """The message id of a dead letter that is sent through again."""

    letter: DeadLetter


@dataclass(slots=True)
class Emission:
    """What a task has emitted since it was asked last."""

    frames: list[Frame]
    roots: Ids
    values: Ids
    """The first value of each tree: the XOR of the ids of the tuples it begins as."""

    unfit: list[Unfit] = field(default_factory=list)
    """What cannot be sent to a worker, and is in no frame; its trees have begun."""

    suspects: list[int] = field(default_factory=list)
    """The roots of messages that have killed their worker before."""

    counts: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))
    """By stream: tuples emitted, and copies sent."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What a run tells each of its spout tasks."""

    conf: Mapping[str, Any]
    tracked: bool
    max_replays: int
    report: Callable[[BaseException], None]
    failing: FailureCounts = field(default_factory=FailureCounts)
    """One for all tasks of a spout."""
    clock: Callable[[], float] = time.monotonic


class SpoutTask(ABC):
    """One task of any spout: its messages on the way, and those that were sent again."""

    def __init__(self, topology: Topology, task: int, settings: TaskSettings) -> None:
        self.task = task
        self.component = topology.component_of[task]
        self._topology = topology
        self._spec = topology.components[self.component]
        self._conf = {**settings.conf, **self._spec.configuration}
        self._tracked = settings.tracked
        self._max_replays = settings.max_replays
        self._report = settings.report
        self._max_pending = self._conf.get("topology.max.spout.pending") or None
        self._failing = settings.failing
        self._pending: dict[int, Message] = {}
        self._aside: list[Message] = []
        self._letters: set[int] = set()
        """The roots of dead letters that are on the way again."""
        self._replays: list[int] = []
        """Which of the messages to be handed out next are dead letters."""
        self.told = 0
        """How often the spout was told that a message failed."""
        self._turn = 0
        self._spout: Any = None
        self._clock = settings.clock
        at_once = None if self._tracked else self._ack_now
        self._collector = SpoutCollector(self._port(), at_once, self._clock)

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

    @property
    def is_limited(self) -> bool:
        """Whether it may have so many messages on the way and no more."""
        return self._max_pending is not None

    def set_max_pending(self, n: int) -> None:
        """Let so many messages be on the way from now on."""
        self._max_pending = n

    def replay(self, letter: DeadLetter) -> None:
        """Send a dead letter through again; EmitError if it does not fit any more."""
        collector = self._collector
        port, task = collector.port, letter.task
        anchor = len(collector.messages) if self._tracked else UNANCHORED
        if task is None:
            outlet = port.outlet(letter.stream)
            fitting = outlet.fit(letter.values or ())
            outlet.put(fitting, anchor)
        else:
            outlet, fitting = port.directed(task, letter.values or (), letter.stream)
            outlet.send(task, fitting, anchor)
        message = (ReplayId(letter), fitting, letter.stream, task, self._clock())
        self._replays.append(len(collector.messages))
        collector.messages.append(message)
        collector.emitted += 1

    def hand_out(self, ids: np.random.Generator, born: int = 0) -> Emission:
        """Return what was emitted as frames of a wave, and begin a tree for each message."""
        collector = self._collector
        messages, collector.messages, collector.emitted = collector.messages, [], 0
        roots = self._new_roots(ids, len(messages)) if self._tracked else no_ids()
        anchors = Anchors(roots if len(roots) else None)
        sealed = seal(self.task, collector.port.outlets.values(), anchors, ids, born)
        self._turn += 1
        collector.port = self._port()
        suspects: list[int] = []
        if self._tracked:
            names = roots.tolist()
            begun = dict(zip(names, messages_of(messages), strict=True))
            self._pending.update(begun)
            self._letters.update(names[number] for number in self._replays)
            if self._failing:
                deadly = self._failing.is_deadly
                suspects = [root for root, m in begun.items() if deadly((self.task, m.id))]
        self._replays = []
        values = first_values(roots, sealed)
        fitting, unfit = weeded(sealed.frames)
        counts = (sealed.emitted, sealed.transferred)
        return Emission(fitting, roots, values, unfit, suspects, counts)

    def _new_roots(self, ids: np.random.Generator, count: int) -> Ids:
        roots = draw_roots(ids, count)
        while not self._pending.keys().isdisjoint(roots.tolist()):
            roots = draw_roots(ids, count)
        return roots

    def replayed(self, roots: Iterable[int]) -> list[DeadLetter]:
        """Take note of letters that were replayed with success, and return them.

        Apart from other messages: no spout has a say in it, even one that is down.
        """
        if not self._letters:
            return []
        messages = [self._pending.pop(root) for root in self._letters.intersection(roots)]
        self._letters.intersection_update(self._pending)
        for message in messages:
            self._failing.forget((self.task, message.id))
        return [message.id.letter for message in messages]

    def waited_s(self, roots: Iterable[int], now: float) -> float:
        """Return how long ago the messages of these trees were emitted, added up."""
        found = map(self._pending.get, roots)
        return sum([now - message.born for message in found if message is not None])

    def is_replay(self, root: int) -> bool:
        """Whether a tree belongs to a dead letter that is replayed."""
        return root in self._letters

    def acked(self, roots: Iterable[int]) -> int:
        """Take note of complete trees, and tell the spout; return of how many."""
        told = 0
        for root in roots:
            message = self._pending.pop(root, None)
            if message is not None:
                self._ack(message)
                told += 1
        return told

    def failed(self, failure: Failure) -> DeadLetter | None:
        """Take note of a failed tree; return a letter if the message has failed too often.

        The caller puts the letter aside durably and then calls `put_aside`.
        """
        message = self._pending.pop(failure.root, None)
        self._letters.discard(failure.root)
        if message is None:
            return None
        failing = self._failing.add(
            (self.task, message.id), lambda: _key(message), deadly=failure.deadly
        )
        if failing.count <= self._max_replays:
            if isinstance(message.id, ReplayId):
                self.replay(message.id.letter)
            else:
                self._fail(message)
            return None
        letter = self._letter(message, failure, failing)
        self._aside.append(message)
        return letter

    def put_aside(self) -> None:
        """Ack the messages whose letters are safe now."""
        aside, self._aside = self._aside, []
        for message in aside:
            self._failing.forget((self.task, message.id))
            if not isinstance(message.id, ReplayId):
                self._ack(message)

    def _letter(self, message: Message, failure: Failure, failing: Failing) -> DeadLetter:
        content, looks = stored_form(self._values_of(message))
        letter = DeadLetter(
            spout=self.component,
            stream=message.stream,
            task=message.target,
            message_id=shown(message.id),
            content=content,
            looks=looks,
            failed_in=failure.component,
            error=failure.error,
            failures=failing.count,
            first_failed=failing.since,
            last_failed=time.time(),
        )
        if not isinstance(message.id, ReplayId):
            return letter
        old = message.id.letter
        return replace(
            letter,
            id=old.id,
            message_id=old.message_id,
            first_failed=old.first_failed,
            failures=old.failures + letter.failures,
        )

    def _values_of(self, message: Message) -> tuple[Any, ...]:
        assert message.values is not None
        return message.values

    def _port(self) -> Port:
        outlets = make_outlets(self._topology, self.task, self._turn)
        return Port(self.component, outlets, report=self._report)

    def _ack(self, message: Message) -> None:
        self._failing.forget((self.task, message.id))
        self._call("ack", message.id)

    def _fail(self, message: Message) -> None:
        self._call("fail", message.id)
        self.told += 1

    def _ack_now(self, msg_id: Any) -> None:
        self._call("ack", msg_id)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the spout; what it raises becomes a SpoutCrash."""
        try:
            return getattr(self._spout, method)(*arguments)
        except SpoutCrash:
            raise  # of an ack within an emit, where nothing is tracked
        except (Exception, SystemExit) as error:
            raise self._crash(method, error) from error

    def _crash(self, method: str, error: BaseException) -> SpoutCrash:
        return SpoutCrash(self.component, self.task, method, described(error))

    def outage(self) -> OutageError | None:
        """Return what the spout waits for by itself, where it does."""
        found = getattr(self._spout, "outage", None)
        return found if isinstance(found, OutageError) else None

    @abstractmethod
    def open(self) -> None:
        """Connect to the source."""

    def close(self) -> None:
        """Give up the source; what that raises is only reported."""
        try:
            self._spout.close()
        except Exception as error:
            self._report(error)

    @abstractmethod
    def activate(self, active: bool) -> None:
        """Tell the spout that it will, or will not, be asked for a while."""


class PulledSpout(SpoutTask):
    """A spout whose `next_tuple` is called here."""

    def __init__(
        self, topology: Topology, task: int, settings: TaskSettings, pickled: bytes
    ) -> None:
        super().__init__(topology, task, settings)
        self._pickled = pickled
        # The first task is the user's own object: it can be looked at, and fed.
        first = topology.tasks[self.component][0] == task
        self._spout = self._spec.component if first else unpack(pickled)

    def open(self) -> None:
        self._call("open", self._conf, self._topology.context(self.task), self._collector)

    def restart(self) -> None:
        """Go on with a new copy; what the old one had on the way, its source must give again.

        Dead letters that are being replayed come from no source: they stay on the way.
        """
        self.close()
        collector = self._collector
        letters = [m[0].letter for m in collector.messages if isinstance(m[0], ReplayId)]
        self._pending = {r: m for r, m in self._pending.items() if isinstance(m.id, ReplayId)}
        collector.messages.clear()
        collector.emitted = 0
        self._replays = []
        collector.port = self._port()
        for letter in letters:
            self.replay(letter)
        self._spout = unpack(self._pickled)
        self.open()

    def ask(self, room: int, until: float) -> bool:
        """Ask for up to `room` tuples, until the look is over; False if there were no more."""
        collector, clock, spout = self._collector, self._clock, self._spout
        full = collector.emitted + room
        most = None if self._max_pending is None else self._max_pending - len(self._pending)
        try:
            for _ in range(_CALLS_PER_LOOK):
                before = collector.emitted
                if before >= full or (most is not None and len(collector.messages) >= most):
                    return True
                spout.next_tuple()
                if collector.emitted == before:
                    return False
                if clock() >= until:
                    break
        except SpoutCrash:
            raise  # of an ack within an emit, where nothing is tracked
        except (Exception, SystemExit) as error:
            raise self._crash("next_tuple", error) from error
        return True

    def acked(self, roots: Iterable[int]) -> int:
        # As for any spout, but hardly anything is done for a message besides calling its spout.
        told, task, pop, failing = 0, self.task, self._pending.pop, self._failing
        some_failing = len(failing) > 0
        try:
            ack = self._spout.ack
            for root in roots:
                message = pop(root, None)
                if message is not None:
                    if some_failing:
                        failing.forget((task, message[0]))
                    ack(message[0])
                    told += 1
        except (Exception, SystemExit) as error:
            raise self._crash("ack", error) from error
        return told

    def failed(self, failure: Failure) -> DeadLetter | None:
        if not self._spout._is_final:
            return super().failed(failure)
        message = self._pending.pop(failure.root, None)
        if message is not None:
            self._call("_fail_because", message.id, failure.component, failure.error)
            self.told += 1
        return None

    def returned(self, frame: Frame) -> None:
        """Give the spout what a bolt has sent back to this task."""
        for values in frame.rows:
            self._call("_returned", values)

    def lag(self) -> int | None:
        """Ask the spout how many messages wait at its source."""
        waiting = self._call("lag")
        return None if waiting is None else int(waiting)

    def is_drained(self) -> bool:
        """Ask the spout whether more is to be expected."""
        return bool(self._call("is_drained"))

    def activate(self, active: bool) -> None:
        self._call("activate" if active else "deactivate")


def _key(message: Message) -> str | None:
    """Return what a message is known by in the next run; a dead letter has its own memory."""
    if isinstance(message.id, ReplayId):
        return None
    return digest(message.id, message.stream, message.values)
