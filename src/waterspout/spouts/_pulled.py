"""A spout of a core topology as a source of batches: messages are pulled in the driver.

It knows no batches, so a batch is what it gives just then, and another attempt holds other
messages: non-transactional. Its rows go through the driver, for each batch in flight at most
`spout_max_batch_size`, or as many as it is asked for (and what one call of `next_tuple` gives
beyond that).
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from waterspout._safe_repr import described, shown
from waterspout._schema import Schema
from waterspout._tuples import Fields
from waterspout.errors import OutageError, SourceError, SpoutCrash
from waterspout.spouts._base import AdaptedSource, BatchPlanner, RunsIn, SpoutContext, SpoutKind
from waterspout.spouts._reads import Read, RowsRead
from waterspout.topology._builder import SpoutDeclarer
from waterspout.topology._component import DEFAULT_STREAM, Spout, StreamSchema
from waterspout.topology._graph import Topology
from waterspout.topology._pickling import require_picklable
from waterspout.topology._ports import Outlet, Port
from waterspout.waves.spouts import PulledSpout, TaskSettings

__all__ = ["PulledSource"]

log = logging.getLogger(__name__)

_PENDING_KEY = "topology.max.spout.pending"
_HERE = (0,)

# How long a batch is gathered from a spout that sleeps whenever it is asked.
_PULL_S = 1.0
_OWN_SIZE = 1_000


class PulledSource(AdaptedSource[Spout]):
    """Recipe of the stream of a core spout."""

    read_in = RunsIn.DRIVER

    def __init__(self, spout: Spout, topology: str, spout_id: str, schema: Schema) -> None:
        super().__init__(spout, spout_id, schema, SpoutKind.NON_TRANSACTIONAL)
        spec = SpoutDeclarer(spout_id, spout, 1).spec()
        spec = replace(spec, streams={DEFAULT_STREAM: StreamSchema(Fields(*schema.names))})
        self._topology = Topology(topology, {spout_id: spec})
        self._pickled = require_picklable(spout, self._where)
        spout._check_use(self._topology.context(1), spec.configuration)
        self._planner: _PulledPlanner | None = None

    def open(self, context: SpoutContext) -> BatchPlanner:
        """Open the spout: the user's own object, as the first task of a core topology is."""
        # There it bounds messages, here batches; the size of a batch is what bounds messages.
        conf = {**context.conf.to_dict(), _PENDING_KEY: None}
        settings = TaskSettings(
            conf,
            tracked=True,
            max_replays=0,
            report=lambda error: log.warning("spout %r: %s", self._spout_id, described(error)),
        )
        task = _Puller(self._topology, 1, settings, self._pickled)
        limits = (context.conf.spout_max_batch_size, context.conf.max_retries)
        self._planner = _PulledPlanner(task, *limits)
        return self._planner

    def read(self, metadata: Any) -> Read:
        """Return the rows that were pulled for this attempt; they are here and nowhere else."""
        batch = None if self._planner is None else self._planner.batches.get(metadata["batch"])
        if batch is None:
            raise SourceError(
                f"{self._where}: the rows of this attempt were in the memory of a "
                "driver that gave them up; the source gives its messages again"
            )
        positions = batch.positions()
        return RowsRead(self._schema, batch.rows, positions=positions, where=self._where)


@dataclass(slots=True)
class _Batch:
    rows: Sequence[tuple[Any, ...]]
    ids: Sequence[Any]
    """The ids of the tracked messages."""
    id_of_row: Mapping[int, Any]
    """By the index of a row, the id of its message."""

    def positions(self) -> list[str]:
        return [
            f"message {shown(self.id_of_row[i])}" if i in self.id_of_row else f"row {i}"
            for i in range(len(self.rows))
        ]


class _Puller(PulledSpout):
    """A spout task whose tuples are not sent to bolts but taken as rows."""

    def _port(self) -> Port:
        names = self._topology.fields[self.component][DEFAULT_STREAM]
        outlet = Outlet(DEFAULT_STREAM, names, lambda _: _HERE)
        return Port(self.component, {DEFAULT_STREAM: outlet}, report=self._report)

    def take(self) -> _Batch:
        """Return what was emitted since the last time."""
        collector = self._collector
        messages, collector.messages, collector.emitted = collector.messages, [], 0
        box = collector.port.outlets[DEFAULT_STREAM].box(0)
        collector.port = self._port()
        ids = [message[0] for message in messages]
        # An anchor is the index of the message that a row belongs to; below 0, of none.
        id_of_row = {row: ids[anchor] for row, anchor in enumerate(box.anchors) if anchor >= 0}
        return _Batch(box.rows, ids, id_of_row)

    def tell(self, method: str, ids: Sequence[Any]) -> None:
        """Ack or fail messages."""
        for msg_id in ids:
            self._call(method, msg_id)


class _PulledPlanner(BatchPlanner):
    """Pulls the next batch when asked whether there is one; tells the spout how each ended.

    A method of the spout that raises takes the spout down: it goes on as a new copy, and what the
    old one had on the way its source must give again, as in a core topology.
    """

    unit = "messages"

    def __init__(self, task: _Puller, size: int | None, max_retries: int) -> None:
        self._task = task
        self._is_fixed = size is not None
        self._size = size or _OWN_SIZE
        self._target: int | None = None
        self._full: set[str] = set()
        """The attempts whose pull ended because there was enough."""
        self._max_retries = max_retries
        self._run = secrets.token_hex(4)
        self._pulls = 0
        self._tokens: dict[int, str] = {}
        """The newest attempt of each batch in flight."""
        self.batches: dict[str, _Batch] = {}
        """By attempt; threads of the engine look into it."""
        self._is_down = False
        self._is_active = True
        self._crashes: Counter[str] = Counter()
        self._watched("open", task.open)

    def is_ready(self, previous: Any) -> bool:
        self._up()
        if not self._task.emitted:
            self._pull()
        return self._task.emitted > 0

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        self._target = None if self._is_fixed else target
        # When a batch fails, all later ones are replayed too, and so are their messages.
        for lost in sorted(t for t in self._tokens if t >= txid):
            token = self._tokens.pop(lost)
            batch = self.batches.pop(token)
            self._full.discard(token)
            self._guarded(lambda ids=batch.ids: self._task.tell("fail", ids))  # type: ignore[misc]
        self._up()
        self._pull()
        batch = self._task.take()
        self._pulls += 1
        token = self._tokens[txid] = f"{self._run}-{self._pulls}"
        self.batches[token] = batch
        if len(batch.rows) >= self._wanted:
            self._full.add(token)
        return {"batch": token, "rows": len(batch.rows)}

    def size_of(self, metadata: Any) -> int | None:
        return None if self._is_fixed else int(metadata["rows"])

    def left_more(self, metadata: Any) -> bool | None:
        return metadata["batch"] in self._full

    def holds_data(self, metadata: Any) -> bool | None:
        return bool(metadata["rows"])

    def succeeded(self, txid: int, metadata: Any) -> None:
        token = self._tokens.pop(txid, None)
        self._full.discard(token or "")
        batch = None if token is None else self.batches.pop(token, None)
        if batch is None or self._is_down:
            return
        self._watched("ack", lambda: self._task.tell("ack", batch.ids))

    def outage(self) -> OutageError | None:
        return None if self._is_down else self._task.outage()

    def is_drained(self) -> bool:
        if self._is_down or self._task.emitted:
            return False
        return bool(self._watched("is_drained", self._task.is_drained))

    def set_active(self, active: bool) -> None:
        self._is_active = active
        if not self._is_down:
            self._watched("activate", lambda: self._task.activate(active))

    def lag(self, previous: Any) -> Mapping[str, int]:
        waiting = None if self._is_down else self._task.lag()
        return {} if waiting is None else {"messages": waiting + self._task.emitted}

    def close(self) -> None:
        self._task.close()

    @property
    def _wanted(self) -> int:
        return self._target or self._size

    def _pull(self) -> None:
        """Ask until there are enough tuples, or a call gives none, or it has taken long enough."""
        until = time.monotonic() + _PULL_S
        while (room := self._wanted - self._task.emitted) > 0 and time.monotonic() < until:
            if not self._guarded(lambda n=room: self._task.ask(n, until)):  # type: ignore[misc]
                return

    def _up(self) -> None:
        """Start a spout anew that is down."""
        if not self._is_down:
            return
        self._guarded(self._task.restart)
        self._is_down = False
        if not self._is_active:
            self._watched("activate", lambda: self._task.activate(False))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Call the spout. If it raises, it counts as down, and the caller tries again later."""
        try:
            return call()
        except SpoutCrash:
            self._is_down = True
            for batch in self.batches.values():
                batch.ids = ()  # another copy knows nothing of them
            raise

    def _watched(self, method: str, call: Callable[[], Any]) -> Any:
        """Call the spout where nobody would try again: a crash is counted, too many are raised."""
        try:
            answer = self._guarded(call)
        except SpoutCrash as crash:
            self._crashes[method] += 1
            if self._crashes[method] > self._max_retries:
                raise
            log.warning("%s; it is started anew", crash)
            return None
        del self._crashes[method]
        return answer
