"""TridentTopology: where streams and states are made, and the plan they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from waterspout._config import Config, Options, as_config
from waterspout._habits import SaysInstead
from waterspout._schema import FieldNames, Schema, check_topology_id
from waterspout.errors import TopologyError
from waterspout.spouts._sources import AnySpout, source_of
from waterspout.state._base import StateFactory, require_factory
from waterspout.trident._grouped import GroupedStream
from waterspout.trident._habits import TOPOLOGY
from waterspout.trident._joins import join_streams, merge_streams, multi_reduce_streams
from waterspout.trident._stream import Stream
from waterspout.trident._tridentstate import TridentState
from waterspout.trident.drpc.nodes import ARGS, DrpcSource
from waterspout.trident.drpc.rewriting import by_request
from waterspout.trident.drpc.streams import drpc_source, refuse_mixed, split
from waterspout.trident.isolation.rewriting import letters_location, with_letters
from waterspout.trident.operations.accepted import ReduceOperation
from waterspout.trident.operations.row_updaters import UpsertRows
from waterspout.trident.plan.explain import explain_as
from waterspout.trident.plan.nodes import Node, Source, Update
from waterspout.trident.plan.partitions import root_of, why_in_one, widths
from waterspout.trident.plan.plan import Finisher, Plan, Shape, StateSpec

__all__ = ["TridentTopology"]


class TridentTopology(SaysInstead):
    """Where streams and states are made. Its progress is stored under `name`."""

    _instead = TOPOLOGY

    def __init__(self, name: str) -> None:
        self.name = check_topology_id(name)
        self._nodes: list[Node] = []
        self._hints: dict[int, int] = {}
        self._states: dict[str, StateSpec] = {}
        self._partitions: dict[str, int] = {}

    def new_stream(self, spout_id: str, spout: AnySpout, out: FieldNames | None = None) -> Stream:
        """Return the stream of a spout; the id names its progress and must be unique.

        The spout is of any kind: a BatchSpout (FileSpout, RateSpout...), a Spout of a core
        topology, an EmittingSpout, a DataFrameSpout, or one of the three transactional ones.
        `out` names and types its fields (`"word string, n bigint"`) where it does not itself.
        """
        check_topology_id(spout_id)
        if any(isinstance(n, Source) and n.spout_id == spout_id for n in self._nodes):
            raise TopologyError(f"there is already a stream {spout_id!r}; use another id")
        for other in self._nodes:
            if isinstance(other, Source) and getattr(other.spout, "original", None) is spout:
                raise TopologyError(
                    f"the spout of stream {spout_id!r} is that of {other.spout_id!r} too; they "
                    "would take each other's batches. Use the stream twice, or make another spout."
                )
        source = source_of(spout, topology=self.name, spout_id=spout_id, out=out)
        name = f"spout {spout_id}"
        return self.add(Source, name, source.schema, spout_id=spout_id, spout=source)

    def new_drpc_stream(self, function: str) -> Stream:
        """Return the stream of the calls of a function: one tuple for each, with the field `args`.

        Whoever calls the function gets the tuples of the operation that was added to it last, as a
        JSON list. Each call is answered by itself: an aggregate sees the tuples of one call.
        """
        check_topology_id(function)
        if any(isinstance(n, DrpcSource) and n.function == function for n in self._nodes):
            raise TopologyError(f"there is already a DRPC function {function!r}; use another name")
        return self.add(DrpcSource, f"drpc {function}", ARGS, function=function)

    def new_static_state(
        self,
        factory: StateFactory,
        *,
        keys: FieldNames | None = None,
        values: FieldNames | None = None,
    ) -> TridentState:
        """Return a state that this topology only reads.

        `keys` and `values` are its fields (`keys="word string", values="count bigint"`; no keys for
        a state of one value). A table with columns, as another topology makes it, needs them; with
        them a query knows its types.
        """
        where = "new_static_state"
        key_schema = Schema.parse(keys or ()).require_types(where=where)
        value_schema = Schema.parse(values or ()).require_types(where=where)
        if keys is not None and values is None:
            raise TopologyError(f'{where} has keys, so it needs values: values="count bigint"')
        shape = Shape.OWN
        if values is not None and isinstance(factory, StateFactory):
            factory = factory.bind(key_schema, value_schema)
            shape = Shape.MAP if len(key_schema) else Shape.SNAPSHOT
        name = self.add_state(factory, shape, static=True)
        return TridentState(self, name, key_schema, value_schema, None)

    def merge(self, *streams: Stream, out: FieldNames | None = None) -> Stream:
        """Return the tuples of several streams as one.

        Its fields are those of the first stream, or `out`; those of the others go by position.
        """
        return merge_streams(self, _listed(streams), out)

    def join(
        self,
        *args: Stream | FieldNames | Sequence[Stream] | Sequence[FieldNames],
        out: FieldNames | None = None,
        how: str | Sequence[str] = "inner",
        mode: str = "compact",
    ) -> Stream:
        """Join streams within each batch: `join(s1, fields1, s2, fields2, out)`, or with lists.

        `how`: "inner", "outer", "left", "right", or for each stream "inner" (it must have a tuple)
        or "outer" (it may lack one: nulls). `mode`: "compact" gives the join fields once, then the
        other fields of each stream; "preserve" all fields of all streams.
        """
        return join_streams(self, args, out, how, mode)

    def multi_reduce(
        self,
        streams: Sequence[Stream] | Sequence[GroupedStream],
        reducer: ReduceOperation,
        out: FieldNames,
        *,
        fields: Sequence[FieldNames] | None = None,
    ) -> Stream:
        """Reduce the tuples of several streams, or of several grouped streams, together."""
        return multi_reduce_streams(self, streams, reducer, out, fields)

    def explain(self, config: Options = None, *, format: str = "text") -> str:
        """Return the plan as text, or as a graph: `format="mermaid"` or `"dot"`."""
        conf = as_config(config)
        plan = self.plan(conf)
        return explain_as(with_letters(plan, conf, letters_location(plan, conf)), conf, format)

    def plan(self, config: Config | None = None, *, in_memory: bool = False) -> Plan:
        """Return the whole description, frozen.

        What the topology keeps for itself, such as windows without a store, is in its folder; or
        in memory, if told so or if every other state ends with the process, too.
        """
        if not any(isinstance(node, Source | DrpcSource) for node in self._nodes):
            raise TopologyError(f"topology {self.name!r} has no stream; begin with new_stream()")
        conf = config or Config()
        default = conf.state_partitions
        folder = conf.home_path().absolute() / self.name
        given = [spec.factory for spec in self._states.values() if not spec.static]
        others = [factory for factory in given if not hasattr(factory, "at")]
        in_memory = in_memory or (bool(others) and all(factory.volatile for factory in others))
        states = {}
        for name, spec in self._states.items():
            at = None if in_memory else getattr(spec.factory, "at", None)
            states[name] = replace(
                spec,
                partitions=self._partitions_of(spec, default),
                factory=spec.factory if at is None else at(folder),
            )
        nodes, calls = split(self._nodes)
        made = Plan(self.name, nodes, states, dict(self._hints), calls=calls)
        made.require_order()
        made.require_partitions()
        for call in calls:
            by_request(call, made).plan.require_partitions()
        return made

    def _partitions_of(self, spec: StateSpec, default: int) -> int:
        given, update = self._partitions.get(spec.name), self._update_of(spec.name)
        if spec.shape is not Shape.OWN or update is None:
            return given or (default if spec.shape is not Shape.OWN else 1)
        if why_in_one(update, spec.factory.kind) is not None:
            return 1
        # An updater sees a batch together, in order, unless its stream is told otherwise.
        return given or widths(self._nodes, self._hints)[root_of(update)] or 1

    def _update_of(self, state: str) -> Update | None:
        updates = (node for node in self._nodes if isinstance(node, Update))
        return next((node for node in updates if node.state == state), None)

    def next_state(self) -> str:
        """Return the name of the state to be made next."""
        return f"state{len(self._states) + 1}"

    def add(
        self,
        kind: Callable[..., Node],
        name: str,
        schema: Schema,
        parents: Sequence[Node] = (),
        **fields: object,
    ) -> Stream:
        """Add a node of some kind and return its stream; only an update may give no field."""
        if not len(schema) and kind is not Update:
            raise TopologyError(f"{name} gives no field; a stream has at least one")
        refuse_mixed(parents, name)
        source = next(filter(None, map(drpc_source, parents)), None)
        if source is not None and fields.get("on_error") == "dead_letter":
            raise TopologyError(
                f"{name} cannot put rows aside: on the DRPC stream {source.function!r} a row that "
                "fails is the error of its request, and the answer says so"
            )
        number = len(self._nodes) + 1
        node = kind(number=number, schema=schema, parents=tuple(parents), name=name, **fields)
        self._nodes.append(node)
        return Stream(self, node)

    def add_state(
        self,
        factory: StateFactory,
        shape: Shape,
        *,
        static: bool = False,
        finisher: Finisher | None = None,
    ) -> str:
        """Take in a state and return its name; refuse two on one table."""
        require_factory(factory)
        location = factory.location()
        for other in self._states.values():
            both_write = location is not None and not (static or other.static)
            if both_write and other.factory.location() == location:
                raise TopologyError(
                    f"two states of topology {self.name!r} are kept in {location}; their batches "
                    "would overwrite each other. Use another table for one of them."
                )
        name = self.next_state()
        self._states[name] = StateSpec(name, factory, 1, shape, static, finisher=finisher)
        return name

    def given_states(self) -> dict[str, StateSpec]:
        """Return the states as they were given, by name."""
        return dict(self._states)

    def replace_state(self, name: str, factory: StateFactory) -> None:
        """Keep a state by another recipe, for the same fields.

        A table of rows by key may be replaced by a map of them.
        """
        spec, update = self._states[name], self._update_of(name)
        by = None if update is None else update.updating.operation
        if spec.shape is Shape.ROWS and not factory.keeps_rows and isinstance(by, UpsertRows):
            spec = replace(spec, shape=Shape.MAP, finisher=by)
        self._states[name] = replace(spec, factory=factory)

    def state_spec(self, name: str) -> StateSpec:
        """Return a state of this topology."""
        return self.plan().states[name]

    def set_partitions(self, name: str, n: int) -> None:
        """Fix a state's number of partitions."""
        n, update = _positive(n), self._update_of(name)
        why = update and why_in_one(update, self._states[name].factory.kind)
        if n > 1 and update is not None and why is not None:
            raise TopologyError(
                f"{update.title}: parallelism_hint({n}) is not possible, because {why}: several "
                "tasks might write one key of the map, and one of them would count. Say which "
                'fields are the key (keys = "user" in the StateUpdater, or '
                '@updater(keys="user")), or leave the hint out.'
            )
        self._partitions[name] = n

    def hint(self, node: Node, n: int) -> None:
        """Note a stream's parallelism."""
        self._hints[node.number] = _positive(n)

    def rename(self, node: Node, name: str) -> None:
        """Give a node a name of the user's."""
        if not name:
            raise TopologyError("a name must not be empty")
        object.__setattr__(node, "name", name)


def _listed(streams: Sequence[Any]) -> list[Any]:
    """Return streams given one by one, or as a list."""
    if len(streams) == 1 and isinstance(streams[0], (list, tuple)):
        return list(streams[0])
    return list(streams)


def _positive(n: int) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise TopologyError(f"parallelism_hint must be a positive number, not {n!r}")
    return n
