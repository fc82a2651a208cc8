"""TridentTopology: where streams and states are made, and the plan they add up to."""

from __future__ import annotations

from dataclasses import replace

from waterspout.config import Config
from waterspout.errors import TopologyError
from waterspout.schema import Schema, check_topology_id
from waterspout.spouts.base import BatchSpout
from waterspout.state.base import StateFactory
from waterspout.trident.plan.nodes import Node, Source, Update
from waterspout.trident.plan.plan import Plan, Shape, StateSpec
from waterspout.trident.stream import Stream, new_values
from waterspout.trident.tridentstate import TridentState

__all__ = ["TridentTopology"]


class TridentTopology:
    """A description under construction. `name` is the id under which its progress is kept."""

    def __init__(self, name: str) -> None:
        self.name = check_topology_id(name)
        self._nodes: list[Node] = []
        self._names: dict[int, str] = {}
        self._hints: dict[int, int] = {}
        self._states: dict[str, StateSpec] = {}
        self._partitions: dict[str, int] = {}

    def new_stream(self, spout_id: str, spout: BatchSpout) -> Stream:
        """Return the stream of a spout; the id names its progress and must be unique."""
        check_topology_id(spout_id)
        if any(isinstance(n, Source) and n.spout_id == spout_id for n in self._nodes):
            raise TopologyError(f"there is already a stream {spout_id!r}; use another id")
        if not isinstance(spout, BatchSpout):
            raise TopologyError(f"new_stream({spout_id!r}) needs a spout; got {spout!r}")
        schema = spout.schema.require_types(where=f"spout {spout_id!r}")
        node = Source(
            number=self.next_number(),
            schema=schema,
            name=f"spout {spout_id}",
            spout_id=spout_id,
            spout=spout,
        )
        return Stream(self, self.add(node))

    def new_static_state(self, factory: StateFactory) -> TridentState:
        """Return a state that this topology only reads."""
        name = self.add_state(factory, Shape.OWN, static=True)
        return TridentState(self, name, Schema(), Schema(), None)

    def new_values(self, update: Update) -> Stream:
        """Return the stream of an update's new values."""
        return new_values(self, update)

    def plan(self, config: Config | None = None) -> Plan:
        """Return the whole description, frozen."""
        if not any(isinstance(node, Source) for node in self._nodes):
            raise TopologyError(f"topology {self.name!r} has no stream; begin with new_stream()")
        default = (config or Config()).state_partitions
        states = {}
        for name, spec in self._states.items():
            # A state of the user's own sees a batch together, in order, unless told otherwise.
            usual = 1 if spec.shape is Shape.OWN else default
            states[name] = replace(spec, partitions=self._partitions.get(name, usual))
        return Plan(self.name, tuple(self._nodes), states, dict(self._hints))

    # --- what streams and states call --------------------------------------------------------

    def next_number(self) -> int:
        """Return the number of the node to be made next."""
        return len(self._nodes) + 1

    def add(self, node: Node) -> Node:
        """Take in a node."""
        self._nodes.append(node)
        return node

    def add_state(self, factory: StateFactory, shape: Shape, *, static: bool = False) -> str:
        """Take in a state and return its name; refuse two on one table."""
        if not isinstance(factory, StateFactory):
            raise TopologyError(f"{factory!r} is not a StateFactory; a state is made by a recipe")
        place = factory.location()
        for other in self._states.values():
            both_write = place is not None and not (static or other.static)
            if both_write and other.factory.location() == place:
                raise TopologyError(
                    f"two states of topology {self.name!r} are kept in {place}; their batches "
                    "would overwrite each other. Use another table for one of them."
                )
        name = f"state{len(self._states) + 1}"
        self._states[name] = StateSpec(name, factory, 1, shape, static)
        return name

    def state_spec(self, name: str) -> StateSpec:
        """Return a state of this topology."""
        return self.plan().states[name]

    def set_partitions(self, name: str, n: int) -> None:
        """Fix a state's number of partitions."""
        self._partitions[name] = _positive(n)

    def hint(self, node: Node, n: int) -> None:
        """Note a stream's parallelism."""
        self._hints[node.number] = _positive(n)

    def rename(self, node: Node, name: str) -> None:
        """Give a node a name of the user's."""
        if not name:
            raise TopologyError("a name must not be empty")
        object.__setattr__(node, "name", name)


def _positive(n: int) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise TopologyError(f"parallelism_hint must be a positive number, not {n!r}")
    return n
