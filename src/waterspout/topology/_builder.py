"""`TopologyBuilder`: spouts, bolts and groupings, one call each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from waterspout._config import Config
from waterspout._habits import SaysInstead
from waterspout._safe_repr import with_article
from waterspout._signatures import refuse_misfit_methods
from waterspout._tuples import Fields
from waterspout.errors import ConfigError, TopologyError
from waterspout.topology._component import (
    DEFAULT_STREAM,
    BasicBolt,
    Bolt,
    Component,
    LogSpout,
    Spout,
)
from waterspout.topology._graph import RETURN_STREAM, ComponentSpec, Subscription, Topology
from waterspout.topology._grouping import Grouping, GroupingKind, TaskChooser
from waterspout.topology._pickling import require_picklable

__all__ = ["BoltDeclarer", "SpoutDeclarer", "TopologyBuilder", "declare", "kind_of"]


D = TypeVar("D", bound="SpoutDeclarer")

_TASKS = "tasks are counted where it is set: set_bolt(id, bolt, parallelism=4)"
_BUILD = "create_topology(name) makes the topology, submit(topology) runs it"


class SpoutDeclarer(SaysInstead):
    """What can be said of a component after it was set."""

    noun = "spout"
    _instead = dict.fromkeys(("parallelism_hint", "set_parallelism"), _TASKS)

    def __init__(self, id: str, component: Component, parallelism: int) -> None:
        self._id = id
        self._component = component
        self._tasks = parallelism
        self._configuration: dict[str, Any] = {}
        self._inputs: list[Subscription] = []
        self.add_configurations(component.configuration)

    def set_num_tasks(self, n: int) -> Self:
        """Set the number of tasks, fixed for the life of the topology."""
        self._tasks = _positive(n, f"the number of tasks of {self._id!r}")
        return self

    def add_configuration(self, key: str, value: Any) -> Self:
        """Set an option of this component alone, by Storm's key or one of your own."""
        if not isinstance(key, str) or not key:
            raise ConfigError(f"{self._id!r}: a configuration key is a string, not {key!r}")
        known, checked = _checked_option(self._id, key, value)
        self._configuration[known] = checked
        return self

    def add_configurations(self, options: Mapping[str, Any]) -> Self:
        """Set several options."""
        for key, value in options.items():
            self.add_configuration(key, value)
        return self

    def set_max_spout_pending(self, n: int) -> Self:
        """Limit the unfinished messages of each task."""
        return self.add_configuration("topology.max.spout.pending", n)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.endswith("_grouping") and not isinstance(self, BoltDeclarer):
                raise TopologyError(f"{self._id!r} is a spout: it takes no stream ({name})")
            return super().__getattr__(name)

    def _options(self) -> dict[str, Any]:
        # Looked at again: a bolt may have been given its window after it was set.
        own = self._component.configuration
        checked = dict(_checked_option(self._id, key, value) for key, value in own.items())
        return {**checked, **self._configuration}

    def spec(self) -> ComponentSpec:
        """Return the component as a topology has it."""
        try:
            streams = self._component.declared_streams()
        except TopologyError as error:
            raise TopologyError(f"{self._id!r}: {error}") from None
        return ComponentSpec(
            self._id,
            self._component,
            self._tasks,
            streams,
            is_spout=not isinstance(self, BoltDeclarer),
            inputs=tuple(self._inputs),
            configuration=self._options(),
            read_on_executors=self._component.read_on_executors,
        )


class BoltDeclarer(SpoutDeclarer):
    """The groupings: each says that the bolt takes a stream, and which task gets a tuple.

    Each may be called several times, also for one stream: the bolt then gets it several times.
    """

    noun = "bolt"

    def shuffle_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> Self:
        """Deal the tuples evenly."""
        return self._take(source, stream, GroupingKind.SHUFFLE)

    def fields_grouping(
        self, source: str, *fields: str | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> Self:
        """Send tuples with equal values in these fields to one and the same task."""
        return self._take(source, stream, GroupingKind.FIELDS, self._names(fields))

    def all_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send a copy to every task."""
        return self._take(source, stream, GroupingKind.ALL)

    def global_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send everything to the task with the lowest id."""
        return self._take(source, stream, GroupingKind.GLOBAL)

    def none_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> Self:
        """Say that it does not matter: a task at random."""
        return self._take(source, stream, GroupingKind.NONE)

    def local_or_shuffle_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> Self:
        """Deal evenly among the tasks beside the producer, if there are any, else among all."""
        return self._take(source, stream, GroupingKind.LOCAL_OR_SHUFFLE)

    def direct_grouping(self, source: str, stream: str = DEFAULT_STREAM) -> Self:
        """Let the producer name the task, with `emit_direct`."""
        return self._take(source, stream, GroupingKind.DIRECT)

    def partial_key_grouping(
        self, source: str, *fields: str | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> Self:
        """Send each key to one of two tasks, the less used one: for skewed keys."""
        return self._take(source, stream, GroupingKind.PARTIAL_KEY, self._names(fields))

    def custom_grouping(
        self, source: str, grouping: TaskChooser, stream: str = DEFAULT_STREAM
    ) -> Self:
        """Let an object choose: `prepare(context, stream, tasks)`, `choose_tasks(task, values)`."""
        for method in ("prepare", "choose_tasks"):
            if not callable(getattr(grouping, method, None)):
                raise TopologyError(
                    f"the custom grouping of bolt {self._id!r} has no method {method}"
                )
        require_picklable(grouping, f"the custom grouping of bolt {self._id!r}")
        return self._take(source, stream, GroupingKind.CUSTOM, custom=grouping)

    def _take(
        self,
        source: str,
        stream: str,
        kind: GroupingKind,
        fields: Fields = Fields(),  # noqa: B008  (immutable)
        custom: TaskChooser | None = None,
    ) -> Self:
        for what, name in (("a component id", source), ("a stream id", stream)):
            if not isinstance(name, str):
                raise TopologyError(f"bolt {self._id!r}: {what} is a string, not {name!r}")
        self._inputs.append(Subscription(source, stream, Grouping(kind, fields, custom)))
        return self

    def _names(self, fields: Sequence[str | Sequence[str]]) -> Fields:
        names: list[str] = []
        for given in fields:
            names.extend([given] if isinstance(given, str) else given)
        if not names:
            raise TopologyError(f"bolt {self._id!r}: name the fields to group by")
        return Fields(*names)


class TopologyBuilder(SaysInstead):
    """Describes a topology of spouts and bolts.

    >>> from waterspout.testing import FeederSpout
    >>> builder = TopologyBuilder()
    >>> _ = builder.set_spout("sentences", FeederSpout("sentence"))
    >>> [spec.id for spec in builder.create_topology("words").spouts]
    ['sentences']
    """

    _instead = dict.fromkeys(("build", "submit"), _BUILD)

    def __init__(self) -> None:
        self._declared: dict[str, SpoutDeclarer] = {}

    def set_spout(self, id: str, spout: Spout | LogSpout, parallelism: int = 1) -> SpoutDeclarer:
        """Add a spout that runs as `parallelism` tasks."""
        if not isinstance(spout, Spout | LogSpout):
            raise TopologyError(
                f"spout {id!r} is {kind_of(spout)}; give an object of a class derived from Spout"
            )
        if isinstance(spout, LogSpout) and spout.output_fields is None:
            raise TopologyError(
                f"spout {id!r} is {kind_of(spout)}: a LogSpout has one stream; declare "
                "its fields as output_fields"
            )
        return declare(self._declared, id, SpoutDeclarer, spout, parallelism)

    def set_bolt(self, id: str, bolt: Bolt | BasicBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt that runs as `parallelism` tasks; then say what it takes, by groupings."""
        if not isinstance(bolt, Bolt | BasicBolt):
            raise TopologyError(
                f"bolt {id!r} is {kind_of(bolt)}; give an object of a class derived from Bolt "
                "or BasicBolt"
            )
        _refuse_idle(id, bolt)
        return declare(self._declared, id, BoltDeclarer, bolt, parallelism)

    def create_topology(self, name: str = "topology") -> Topology:
        """Return the checked, frozen topology; its name is where positions are kept."""
        specs = _with_returns({id: declarer.spec() for id, declarer in self._declared.items()})
        topology = Topology(name, specs)
        for spec in specs.values():
            require_picklable(spec.component, spec.title)
            context = topology.context(topology.tasks[spec.id][0])
            spec.component._check_use(context, spec.configuration)
        return topology


def _refuse_idle(id: str, bolt: Bolt | BasicBolt) -> None:
    """Refuse a bolt that nobody could call, or that has two ways of which one is passed over."""
    if not isinstance(bolt, Bolt):
        return
    name, own_entry = type(bolt).__name__, type(bolt)._tuple_entry is not Bolt._tuple_entry
    if bolt.takes_batches and own_entry:
        raise TopologyError(
            f"bolt {id!r}: {name} has execute_batch, but it is a windowed bolt, which gets its "
            "windows by execute(window); take one of the two"
        )
    if not bolt.takes_batches and type(bolt).execute is Bolt.execute:
        raise TopologyError(
            f"bolt {id!r}: {name} has neither execute(tuple) nor execute_batch(batch, collector)"
        )


def declare(
    declared: dict[str, SpoutDeclarer],
    id: str,
    kind: type[D],
    component: Component,
    parallelism: int,
) -> D:
    """Add a component to those declared, if its id is free and allowed."""
    if not isinstance(id, str) or not id:
        raise TopologyError(f"a component id is a non-empty string, not {id!r}")
    if id.startswith("__"):
        raise TopologyError(f"{id!r} is not a valid component id: '__' is reserved")
    if id in declared:
        raise TopologyError(f"a {declared[id].noun} has already been declared for id {id!r}")
    tasks = _positive(parallelism, f"the parallelism of {kind.noun} {id!r}")
    refuse_misfit_methods(component, f"{kind.noun} {id!r}")
    declarer = declared[id] = kind(id, component, tasks)
    return declarer


def _with_returns(specs: Mapping[str, ComponentSpec]) -> dict[str, ComponentSpec]:
    """Let the spouts that something is returned to take it from all bolts that return something."""
    bolts = [spec for spec in specs.values() if RETURN_STREAM in spec.streams]
    takers = [spec for spec in specs.values() if spec.is_spout and spec.component._takes_returns]
    if bolts and not takers:
        raise TopologyError(
            f"{bolts[0].title} returns results, but there is no spout whose requests they answer; "
            "add one: set_spout(id, DRPCSpout(function))"
        )
    direct = Grouping(GroupingKind.DIRECT)
    inputs = tuple(Subscription(spec.id, RETURN_STREAM, direct) for spec in bolts)
    return {**specs, **{spec.id: replace(spec, inputs=inputs) for spec in takers}}


def _positive(n: object, what: str) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise TopologyError(f"{what} must be a positive integer, not {n!r}")
    return n


def kind_of(thing: object) -> str:
    """Return what somebody has given instead of a component, for an error."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return with_article(type(thing).__name__)


def _checked_option(component: str, key: str, value: Any) -> tuple[str, Any]:
    """Return a known option under its one key; refuse a bad value now, not when the run starts."""
    known = Config.known_keys().get(key)
    if known is None:
        return key, value
    try:
        return known, Config.from_dict({key: value}).to_dict()[known]
    except ConfigError as error:
        raise ConfigError(f"{component!r}: {error}") from None
