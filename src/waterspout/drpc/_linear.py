"""`LinearDRPCTopologyBuilder`: one function as a chain of bolts, from the argument to the result.

    spout -> prepare-request -> bolt0 -> bolt1 ... -> join-result -> return-results

The first field of every tuple is the id of its request. The last bolt emits one tuple for each
request: the id and the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from waterspout._habits import SaysInstead
from waterspout._tuples import Fields, Tuple
from waterspout.drpc._coordinated import ANNOUNCED, ANNOUNCEMENT, REQUEST, Coordinated, announce
from waterspout.drpc._spout import DRPCSpout, ReturnResults
from waterspout.errors import FailedException, TopologyError
from waterspout.topology._builder import BoltDeclarer, TopologyBuilder, kind_of
from waterspout.topology._collector import OutputCollector
from waterspout.topology._component import DEFAULT_STREAM, BasicBolt, Bolt, StreamSchema
from waterspout.topology._context import TopologyContext
from waterspout.topology._graph import Subscription, Topology
from waterspout.topology._grouping import GroupingKind, TaskChooser
from waterspout.transactional._bolts import BatchBolt

__all__ = [
    "JoinResult",
    "LinearDRPCTopologyBuilder",
    "LinearDeclarer",
    "PrepareRequest",
    "ReturnJoined",
]

SPOUT, PREPARE, JOIN, RETURN = "spout", "prepare-request", "join-result", "return-results"
RETURN_INFO = "return-info"

_CREATE = "create_topology(name) makes the topology, submit(topology) runs it"


class LinearDeclarer(SaysInstead):
    """How a bolt takes what the bolt before it emits: groupings, without the source."""

    def __init__(self, id: str, bolt: BatchBolt | BasicBolt, parallelism: int) -> None:
        self.id, self.bolt, self.parallelism = id, bolt, parallelism
        self.said: list[Callable[[BoltDeclarer, str], object]] = []
        self.has_grouping = False

    def shuffle_grouping(self, stream: str = DEFAULT_STREAM) -> Self:
        """Deal the tuples evenly."""
        return self._take(lambda bolt, source: bolt.shuffle_grouping(source, stream))

    def fields_grouping(self, *fields: str | Sequence[str], stream: str = DEFAULT_STREAM) -> Self:
        """Send tuples with equal values in these fields to one and the same task."""
        return self._take(lambda bolt, source: bolt.fields_grouping(source, *fields, stream=stream))

    def all_grouping(self, stream: str = DEFAULT_STREAM) -> Self:
        """Send a copy to every task."""
        return self._take(lambda bolt, source: bolt.all_grouping(source, stream))

    def global_grouping(self, stream: str = DEFAULT_STREAM) -> Self:
        """Send everything to the task with the lowest id."""
        return self._take(lambda bolt, source: bolt.global_grouping(source, stream))

    def none_grouping(self, stream: str = DEFAULT_STREAM) -> Self:
        """Say that it does not matter: a task at random."""
        return self._take(lambda bolt, source: bolt.none_grouping(source, stream))

    def local_or_shuffle_grouping(self, stream: str = DEFAULT_STREAM) -> Self:
        """Deal evenly among the tasks beside the producer, if there are any, else among all."""
        return self._take(lambda bolt, source: bolt.local_or_shuffle_grouping(source, stream))

    def direct_grouping(self, stream: str = DEFAULT_STREAM) -> Self:
        """Let the producer name the task, with `emit_direct`."""
        return self._take(lambda bolt, source: bolt.direct_grouping(source, stream))

    def partial_key_grouping(
        self, *fields: str | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> Self:
        """Send each key to one of two tasks, the less used one: for skewed keys."""
        return self._take(
            lambda bolt, source: bolt.partial_key_grouping(source, *fields, stream=stream)
        )

    def custom_grouping(self, grouping: TaskChooser, stream: str = DEFAULT_STREAM) -> Self:
        """Let an object choose: `prepare(context, stream, tasks)`, `choose_tasks(task, values)`."""
        return self._take(lambda bolt, source: bolt.custom_grouping(source, grouping, stream))

    def set_num_tasks(self, n: int) -> Self:
        """Set the number of tasks, fixed for the life of the topology."""
        self.said.append(lambda bolt, source: bolt.set_num_tasks(n))
        return self

    def add_configuration(self, key: str, value: Any) -> Self:
        """Set an option of this component alone, by Storm's key or one of your own."""
        self.said.append(lambda bolt, source: bolt.add_configuration(key, value))
        return self

    def _take(self, grouping: Callable[[BoltDeclarer, str], object]) -> Self:
        self.said.append(grouping)
        self.has_grouping = True
        return self


class LinearDRPCTopologyBuilder(SaysInstead):
    """Describes a function as a chain of bolts, each of which takes what the one before it emits.

    A `BatchBolt` gets all tuples of a request at its task, and `finish_batch` when these were all;
    the id that it is prepared with is that of the request. A `BasicBolt` gets tuple by tuple.
    """

    _instead: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("create_remote_topology", "create_local_topology", "build", "submit"), _CREATE
    )

    def __init__(self, function: str) -> None:
        self._spout = DRPCSpout(function)
        self._bolts: list[LinearDeclarer] = []

    def add_bolt(self, bolt: BatchBolt | BasicBolt, parallelism: int = 1) -> LinearDeclarer:
        """Add a bolt behind the others; then say how it takes what the bolt before it emits.

        Without a grouping the first one gets its requests on any task.
        """
        id = f"bolt{len(self._bolts)}"
        if not isinstance(bolt, BatchBolt | BasicBolt):
            raise TopologyError(
                f"{id!r} is {kind_of(bolt)}; give an object of a class derived from BatchBolt or "
                "BasicBolt: nobody else can tell when a request is done"
            )
        if isinstance(bolt, BatchBolt) and type(bolt).execute is BatchBolt.execute:
            raise TopologyError(
                f"{id!r}: {type(bolt).__name__} has no execute(tuple); the tuples of a request do "
                "not come by column"
            )
        self._bolts.append(LinearDeclarer(id, bolt, parallelism))
        return self._bolts[-1]

    def create_topology(self, name: str | None = None) -> Topology:
        """Return the checked, frozen topology; by default it has the name of the function."""
        if not self._bolts:
            raise TopologyError(f"{self._spout.function!r} has no bolt: call add_bolt")
        last = self._bolts[-1]
        result = _require_result(last)
        builder = TopologyBuilder()
        builder.set_spout(SPOUT, self._spout)
        prepare = PrepareRequest(tuple(dict.fromkeys((self._bolts[0].id, last.id, JOIN))))
        builder.set_bolt(PREPARE, prepare).none_grouping(SPOUT)
        emitted: dict[str, StreamSchema] = {}
        chain = [PREPARE, *(each.id for each in self._bolts), JOIN]
        for source, each, behind in zip(chain[:-2], self._bolts, chain[2:], strict=True):
            named = each is last and isinstance(each.bolt, BatchBolt)
            before = dict.fromkeys((source, PREPARE) if named else (source,))
            bolt = Coordinated(each.bolt, before, (behind,), one_task=named)
            declarer = builder.set_bolt(each.id, bolt, each.parallelism)
            for say in each.said:
                say(declarer, source)
            if not each.has_grouping:
                _group_by_default(each, declarer, source)
            if named:
                streams = emitted or prepare.declared_streams()
                _name_one_task(each, declarer, streams)
            emitted = each.bolt.declared_streams()
            for sender in before:
                declarer.direct_grouping(sender, ANNOUNCED)
        join = Coordinated(JoinResult(last.id), (PREPARE, last.id))
        (
            builder.set_bolt(JOIN, join)
            .fields_grouping(PREPARE, "request", stream=RETURN_INFO)
            .fields_grouping(last.id, result[0])
            .direct_grouping(PREPARE, ANNOUNCED)
            .direct_grouping(last.id, ANNOUNCED)
        )
        builder.set_bolt(RETURN, ReturnJoined()).none_grouping(JOIN)
        return builder.create_topology(name or self._spout.function)


class PrepareRequest(Bolt):
    """Gives a request its id: for the bolts with the argument, for the end with the return info."""

    def __init__(self, behind: Sequence[str]) -> None:
        self._behind = tuple(behind)

    def declared_streams(self) -> dict[str, StreamSchema]:
        """Return a stream for the bolts, one for the end, and those that coordinate."""
        return {
            DEFAULT_STREAM: StreamSchema(Fields("request", "args")),
            RETURN_INFO: StreamSchema(Fields("request", "return_info")),
            REQUEST: StreamSchema(Fields("request")),
            ANNOUNCED: ANNOUNCEMENT,
        }

    def prepare(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector
    ) -> None:
        self.collector = collector
        self._targets = [t for name in self._behind for t in context.component_tasks(name)]

    def execute(self, tuple: Tuple) -> None:
        args, info = tuple.values
        id = json.loads(info)["id"]
        sent: dict[int, int] = {}
        for stream, *values in ((DEFAULT_STREAM, id, args), (RETURN_INFO, id, info), (REQUEST, id)):
            for task in self.collector.emit(values, tuple, stream):
                sent[task] = sent.get(task, 0) + 1
        announce(self.collector, id, sent, self._targets, tuple)
        self.collector.ack(tuple)


class JoinResult(BatchBolt):
    """Brings the result of a request together with where it goes."""

    output_fields = ("request", "result", "return_info")

    def __init__(self, last: str) -> None:
        self._last = last
        self._results: list[Any] = []

    def execute(self, tuple: Tuple) -> None:
        if tuple.source_stream == RETURN_INFO:
            self._info = tuple[1]
        else:
            self._results.append(tuple[1])

    def finish_batch(self) -> None:
        if len(self._results) != 1:
            raise FailedException(
                f"bolt {self._last!r} emitted {len(self._results) or 'no'} "
                f"result{'' if not self._results else 's'} for the request; it must emit one"
            )
        self.collector.emit([self.id, self._results[0], self._info])


class ReturnJoined(ReturnResults):
    """Returns results that come with the id of their request."""

    _before: ClassVar[int] = 1


def _group_by_default(each: LinearDeclarer, declarer: BoltDeclarer, source: str) -> None:
    if source != PREPARE:
        raise TopologyError(
            f"{each.id!r} takes nothing of {source!r}; add a grouping, such as .shuffle_grouping()"
        )
    declarer.none_grouping(source)


def _name_one_task(
    last: LinearDeclarer, declarer: BoltDeclarer, streams: Mapping[str, StreamSchema]
) -> None:
    """Let one task of the last bolt know of a request, also if no tuple of it comes there.

    It must be the one that gets all tuples of the request. `streams` are those of its source.
    """

    def is_by_id(given: Subscription) -> bool:
        known = streams.get(given.stream)
        by_fields = given.grouping.kind is GroupingKind.FIELDS
        return by_fields and known is not None and given.grouping.fields == known.fields[:1]

    spec = declarer.spec()
    kinds = {given.grouping.kind for given in spec.inputs}
    if all(map(is_by_id, spec.inputs)):
        declarer.fields_grouping(PREPARE, "request", stream=REQUEST)
    elif spec.num_tasks == 1 or kinds == {GroupingKind.GLOBAL}:
        declarer.global_grouping(PREPARE, REQUEST)
    else:
        raise TopologyError(
            f"the last bolt, {last.id!r}, runs as {spec.num_tasks} tasks, so all tuples of a "
            'request must come to one of them: group it by the id alone, .fields_grouping("id")'
        )


def _require_result(last: LinearDeclarer) -> Fields:
    streams = last.bolt.declared_streams()
    if list(streams) != [DEFAULT_STREAM] or len(streams[DEFAULT_STREAM].fields) != 2:
        shown = "; ".join(f"{s} ({', '.join(x.fields)})" for s, x in streams.items()) or "nothing"
        raise TopologyError(
            f"the last bolt, {last.id!r} ({type(last.bolt).__name__}), must emit one stream of two "
            f"fields, the id of the request and the result; it declares {shown}"
        )
    return streams[DEFAULT_STREAM].fields
