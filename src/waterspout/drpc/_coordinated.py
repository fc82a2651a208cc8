"""When does a bolt have all tuples of a request? Each task tells those behind it how many it sent.

A task that is done with a request announces to every task behind it how many tuples it has sent
there: none, to most. A task has all when everybody before it has announced, and as many tuples have
come as were announced, in whichever order. Then it finishes the request, and announces in turn.
Announcements are anchored: the tree of a request is complete when the last task has finished it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from waterspout._safe_repr import described, shown
from waterspout._tuples import Fields, Tuple
from waterspout.errors import EmitError
from waterspout.topology._collector import OutputCollector
from waterspout.topology._component import BasicBolt, Bolt, StreamSchema
from waterspout.topology._context import TopologyContext
from waterspout.transactional._bolts import BatchBolt, BatchContext
from waterspout.waves.frames import pack, unpack

__all__ = ["ANNOUNCED", "ANNOUNCEMENT", "REQUEST", "Coordinated", "RequestCollector", "announce"]

ANNOUNCED = "__announced"
"""The direct stream of announcements: the request, and how many tuples were sent to this task."""

ANNOUNCEMENT = StreamSchema(Fields("request", "count"), direct=True)

REQUEST = "__request"
"""The stream that tells one task of the last bolt that it is to give the result."""

_TIMEOUTS = ("topology.message.timeout.secs", "drpc.request.timeout.secs")

_Anchors: TypeAlias = Tuple | Sequence[Tuple]


class RequestCollector:
    """The way out of a bolt for one request: the first value of all it emits is the request's id.

    What is emitted is counted by the task that gets it, and anchored.
    """

    def __init__(self, out: OutputCollector, request: Any) -> None:
        self._out = out
        self._request = request
        self.anchors: _Anchors = ()
        self.sent: Counter[int] = Counter()

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple `[id, ...]`; return the tasks that get it."""
        self._check(values)
        targets = self._out.emit(values, self.anchors, stream)
        self.sent.update(targets)
        return targets

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        """Emit a tuple of a direct stream to one task."""
        self._check(values)
        self._out.emit_direct(task, values, self.anchors, stream)
        self.sent[task] += 1

    def reset_timeout(self, tuple: Tuple) -> None:
        """Let the time of this request begin anew when the wave is over."""
        self._out.reset_timeout(tuple)

    def report_error(self, error: BaseException) -> None:
        """Show an error in the log and in `Run.errors` without failing anything."""
        self._out.report_error(error)

    def _check(self, values: Any) -> None:
        first = values[0] if isinstance(values, list | tuple) and values else None
        if first != self._request:
            raise EmitError(
                f"{self._out.port.component!r} emitted {shown(first)} as the first value; it must "
                f"be the id of the request, {self._request!r}: the first field of its input"
            )


@dataclass(slots=True)
class _Request:
    """What a task knows of a request that it is not done with."""

    collector: RequestCollector
    since: float
    bolt: BatchBolt | None = None
    is_here: bool = True
    """Whether it is for this task to finish the request: at the end of a chain, one task does."""
    received: int = 0
    announced: int = 0
    announcements: list[Tuple] = field(default_factory=list)


class _KeptBolt:
    """What is kept of a bolt between waves: its attributes, but for those `prepare` makes again."""

    def __init__(self, bolt: BasicBolt) -> None:
        self.bolt: BasicBolt | None = bolt
        self.attributes: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        if self.bolt is None:
            return self.attributes
        transient = self.bolt.transient
        return {k: v for k, v in self.bolt.__dict__.items() if k not in transient}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.bolt, self.attributes = None, attributes

    def put_back(self, bolt: BasicBolt) -> None:
        """Let a new copy of the bolt, which was prepared, be as this one was."""
        for name in set(bolt.__dict__) - set(self.attributes) - set(bolt.transient):
            del bolt.__dict__[name]
        bolt.__dict__.update(self.attributes)
        self.bolt = bolt


class Coordinated(Bolt):
    """Runs a basic bolt, or a batch bolt for each request, among others of its kind."""

    # Made again where the bolt is not alive; what it remembers is in `_kept`.
    transient: ClassVar[Sequence[str]] = ("_bolt",)

    def __init__(
        self,
        bolt: BatchBolt | BasicBolt,
        before: Iterable[str],
        behind: Iterable[str] = (),
        *,
        one_task: bool = False,
    ) -> None:
        self._bolt = bolt
        self._one_task = one_task
        """Whether one task alone finishes a request: the one that stream `REQUEST` has named."""
        self._before, self._behind = tuple(before), tuple(behind)
        self.configuration = bolt.configuration

    def declared_streams(self) -> dict[str, StreamSchema]:
        """Return what the bolt declares, and the stream of announcements."""
        return {**self._bolt.declared_streams(), ANNOUNCED: ANNOUNCEMENT}

    def prepare(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector
    ) -> None:
        self.collector = collector
        self._conf, self._context = conf, context
        self._sources = sum(len(context.component_tasks(name)) for name in self._before)
        self._targets = [t for name in self._behind for t in context.component_tasks(name)]
        self._keep_s = 2 * max(float(conf.get(key) or 0) for key in _TIMEOUTS)
        self._requests: dict[Any, _Request] = {}
        self._kept = None
        if isinstance(self._bolt, BasicBolt):
            self._bolt.prepare(conf, context)
            self._kept = _KeptBolt(self._bolt)

    def execute(self, tuple: Tuple) -> None:
        id = tuple[0]
        request = self._requests.get(id) or self._begin(id)
        try:
            if tuple.source_stream == ANNOUNCED:
                request.announced += tuple[1]
                request.announcements.append(tuple)
            elif tuple.source_stream == REQUEST:
                request.is_here = True
                request.received += 1
                self.collector.ack(tuple)
            else:
                self._process(request, tuple)
            if self._has_all(request):
                self._finish(id, request)
        except BaseException as error:
            self._give_up(id, described(error))
            raise

    def _process(self, request: _Request, tuple: Tuple) -> None:
        request.collector.anchors = tuple
        request.received += 1
        if request.bolt is not None:
            request.bolt.execute(tuple)
        else:
            bolt: Any = self._live()
            bolt.execute(tuple, request.collector)
        request.collector.anchors = ()  # nothing of the wave is kept by it
        self.collector.ack(tuple)

    def _has_all(self, request: _Request) -> bool:
        everybody = len(request.announcements) == self._sources
        return everybody and request.received == request.announced

    def _finish(self, id: Any, request: _Request) -> None:
        collector, held = request.collector, request.announcements
        if request.bolt is not None and request.is_here:
            collector.anchors = held
            request.bolt.finish_batch()
        announce(self.collector, id, collector.sent, self._targets, held)
        for each in held:
            self.collector.ack(each)
        del self._requests[id]

    def _begin(self, id: Any) -> _Request:
        now = time.time()  # of several machines, and so not exact; it need not be
        for old in [i for i, r in self._requests.items() if now - r.since > self._keep_s]:
            self._give_up(old, "given up")  # it has failed elsewhere, and nobody says so
        request = self._requests[id] = _Request(RequestCollector(self.collector, id), now)
        request.is_here = not self._one_task
        if isinstance(self._bolt, BatchBolt):
            request.bolt = unpack(pack(self._bolt))
            context = self._context
            request.bolt.prepare(
                self._conf,
                BatchContext(
                    *(context.topology_name, context.this_component_id, context.this_task_id),
                    *(context.tasks, context.streams, context.this_sources),
                ),
                request.collector,  # type: ignore[arg-type]
                id,
            )
        return request

    def _give_up(self, id: Any, why: str) -> None:
        """Forget a request that has failed, and let go what is held of its tree."""
        for each in self._requests.pop(id).announcements:
            self.collector.port.fail(each, why)

    def _live(self) -> Any:
        assert self._kept is not None
        assert isinstance(self._bolt, BasicBolt)
        if self._kept.bolt is not self._bolt:
            self._kept.put_back(self._bolt)
        return self._bolt


def announce(
    out: OutputCollector,
    id: Any,
    sent: Mapping[int, int],
    targets: Iterable[int],
    anchors: _Anchors,
) -> None:
    """Tell each of these tasks how many tuples of a request were sent to it."""
    for task in targets:
        out.emit_direct(task, [id, sent.get(task, 0)], anchors, ANNOUNCED)
