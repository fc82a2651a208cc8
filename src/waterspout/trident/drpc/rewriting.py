"""Several requests through one plan: each row carries its request, and none sees the others'.

A row operation or a query takes the rows of all requests together. Whatever looks at several rows
at once (an aggregation, a join) does so by request. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._tuples import TridentTuple, field_index
from waterspout.trident.drpc.nodes import REQUEST, Completed, DrpcSource, TransformEach
from waterspout.trident.drpc.streams import DrpcStream
from waterspout.trident.operations.contracts import (
    GroupedMultiReducer,
    OperationContext,
    TridentCollector,
)
from waterspout.trident.plan.nodes import (
    Aggregate,
    Each,
    Join,
    Keep,
    Mapped,
    Merge,
    MultiReduce,
    Node,
    Project,
    Query,
    Repartition,
    StaticTable,
    Transform,
)
from waterspout.trident.plan.plan import Plan

__all__ = ["RequestPlan", "by_request"]

_REQUEST_FIELD = (REQUEST, "int")


@dataclass(frozen=True)
class RequestPlan:
    """A DRPC stream as it runs: `plan` has the rows of all requests, told apart by a column."""

    stream: DrpcStream
    plan: Plan
    result: Node
    has_batches: bool
    """Whether the topology has streams of spouts, too."""

    @property
    def function(self) -> str:
        """What clients call it."""
        return self.stream.function

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of an answer."""
        return self.stream.result.schema.names


def by_request(stream: DrpcStream, plan: Plan) -> RequestPlan:
    """Return the nodes of a plan's function as they run for several requests at once."""
    making = _ByRequest(stream)
    for node in stream.nodes:
        making.new[node] = making.rewrite(node)
    hints = {n.number: plan.hints[n.number] for n in stream.nodes if n.number in plan.hints}
    made = replace(plan, nodes=tuple(making.nodes), hints=hints, calls=())
    return RequestPlan(stream, made, making.new[stream.result], bool(plan.sources))


class _ByRequest:
    def __init__(self, stream: DrpcStream) -> None:
        self._next = max(node.number for node in stream.nodes) + 1
        self.new: dict[Node, Node] = {}
        self.nodes: list[Node] = []

    def rewrite(self, node: Node) -> Node:
        """Make a node again that keeps rows of several requests apart; return it."""
        parents = tuple(self.new[parent] for parent in node.parents)
        match node:
            case DrpcSource():
                return self._add(replace(node, schema=_tagged(node.schema)))
            case StaticTable():
                return self._add(node)
            case Each(out=out) | Query(out=out):
                schema = Schema((*parents[0].schema.fields, *out.fields))
                return self._add(replace(node, parents=parents, schema=schema))
            case Keep() | Repartition():
                return self._add(replace(node, parents=parents, schema=parents[0].schema))
            case Mapped():
                schema = Schema((*node.schema.fields, _REQUEST_FIELD))
                again = replace(node, parents=parents, schema=schema, beside=(REQUEST,))
                return self._add(again)
            case Project():
                fields, schema = (REQUEST, *node.fields), _tagged(node.schema)
                return self._add(replace(node, parents=parents, fields=fields, schema=schema))
            case Merge() | Join() | MultiReduce():
                return self._of_several(node, tuple(map(self._request_first, parents)))
            case Transform():
                each = TransformEach(
                    number=node.number,
                    schema=_tagged(node.schema),
                    parents=parents,
                    name=node.title,
                    function=node.function,
                )
                return self._add(each)
        assert isinstance(node, Aggregate), f"{node.title} is none of a DRPC stream"
        group = (REQUEST, *(node.group or ()))
        made = replace(node, parents=parents, schema=_tagged(node.schema), group=group)
        return self._completed(node, self._add(made), whole=node.group is None)

    def _of_several(self, node: Merge | Join | MultiReduce, parents: tuple[Node, ...]) -> Node:
        schema = _tagged(node.schema)
        if isinstance(node, MultiReduce):
            groups = node.groups
            tagged = tuple((REQUEST, *names) for names in groups or ((),) * len(parents))
            reducer = _ReduceByRequest(node.reducer, None if groups is None else groups[0])
            made = replace(node, parents=parents, schema=schema, groups=tagged, reducer=reducer)
            return self._completed(node, self._add(made), whole=groups is None)
        if isinstance(node, Join) and not any(isinstance(p, StaticTable) for p in parents):
            keys = tuple((REQUEST, *names) for names in node.keys)
            return self._add(replace(node, parents=parents, schema=schema, keys=keys, once=1))
        return self._add(replace(node, parents=parents, schema=schema))

    def _completed(self, node: Node, made: Node, *, whole: bool) -> Node:
        if not whole:
            return made
        completed = Completed(
            number=self._number(), schema=made.schema, parents=(made,), name=node.title, of=node
        )
        return self._add(completed)

    def _request_first(self, parent: Node) -> Node:
        """Return rows with the request as their first field: fields of several go by position."""
        names = parent.schema.names
        if isinstance(parent, StaticTable) or names[0] == REQUEST:
            return parent
        fields = (REQUEST, *(name for name in names if name != REQUEST))
        schema = parent.schema.select(fields, where=parent.title)
        return self._add(
            Project(number=self._number(), schema=schema, parents=(parent,), fields=fields)
        )

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


class _ReduceByRequest(GroupedMultiReducer[Any]):
    """A reducer of the user's, with groups or without, that does not see the request."""

    def __init__(self, reducer: Any, group: tuple[str, ...] | None) -> None:
        self._reducer = reducer
        self._group = group

    def prepare(self, conf: Config, context: OperationContext) -> None:
        self._reducer.prepare(conf, context)

    def cleanup(self) -> None:
        self._reducer.cleanup()

    def init(self, collector: TridentCollector, group: TridentTuple) -> Any:
        return self._reducer.init(collector, *self._own(group))

    def execute(
        self,
        value: Any,
        stream_index: int,
        group: TridentTuple,
        tuple: TridentTuple,
        collector: TridentCollector,
    ) -> None:
        self._reducer.execute(value, stream_index, *self._own(group), tuple, collector)

    def complete(self, value: Any, group: TridentTuple, collector: TridentCollector) -> None:
        self._reducer.complete(value, *self._own(group), collector)

    def _own(self, group: TridentTuple) -> list[TridentTuple]:
        if self._group is None:
            return []
        return [TridentTuple(group.values[1:], field_index(self._group))]


def _tagged(schema: Schema) -> Schema:
    return Schema((_REQUEST_FIELD, *schema.fields))
