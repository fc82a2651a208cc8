"""What one batch does, step by step and phase by phase. A pure function of plan and facts.

Engines carry the steps out; `explain` prints and counts them. So what is said of a batch is what
happens: there is no second copy of these rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from waterspout._config import Config
from waterspout._schema import WHOLE
from waterspout.spouts._base import RunsIn
from waterspout.trident.operations.aggregators import Count
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.nodes import (
    Aggregate,
    CombineInto,
    Isolated,
    NewValues,
    Node,
    Project,
    Query,
    RowNode,
    Scope,
    Sifted,
    SortedOut,
    Source,
    Update,
)
from waterspout.trident.plan.partitions import PartitionLayout
from waterspout.trident.plan.plan import Phase, Plan

__all__ = [
    "AskState",
    "By",
    "CollectRows",
    "Derive",
    "DropRows",
    "Facts",
    "KeepRows",
    "PassOn",
    "ReadSource",
    "Schedule",
    "SelectHere",
    "Step",
    "WriteState",
    "counted_in_visit",
    "python_chains",
    "read_by_one_task",
    "schedule",
]


_PLAIN_KEYS = frozenset(("string", "binary", "boolean", "date", *WHOLE))
"""Types whose values Arrow and Spark tell apart in the same way."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What only a run can tell: of this batch, of those before it, and of Spark."""

    collected: frozenset[str] = frozenset()
    """States whose rows are expected to fit into the driver; tasks write the others."""

    requests: bool = False
    """Whether somebody asks for dead letters in this batch."""

    shuffle_partitions: int | None = None
    """Over how many partitions Spark shuffles where nobody says it; None: not known."""

    tiny: bool = False
    """Whether the batch is known to be so small that a shuffle costs more than one task's work."""


class By(Enum):
    """Who asks a state, or writes to it."""

    DRIVER = "the driver"
    CHUNKS = "the driver, chunk by chunk"
    TASKS = "tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do with a node."""

    node: Node
    exchanges: tuple[Exchange, ...] = ()
    job: str | None = None
    """Why Spark runs a job for it, if it does."""

    repeats: bool = False
    """The job runs once for each chunk of what is too large to come at once."""

    only_aside: tuple[Node, ...] = ()
    """The step is left out unless one of these nodes has put a row aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSource(Step):
    """Describe how a spout's batch is read; nothing is read yet."""

    node: Source
    is_empty: bool = False
    """It is known to hold nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derive(Step):
    """Describe what a node does with its parents' rows; whoever needs the rows computes them."""

    chain: tuple[Node, ...] = ()
    """Row operations in Python that share one visit, this one last; none: it runs alone."""

    counts: Aggregate | None = None
    """The count behind the chain: in the same visit each group is counted, as far as it is there.

    What goes back to the JVM are groups with their numbers instead of rows.
    """

    adds_up: bool = False
    """The groups of this count come with numbers, which only have to be added up."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are derived, in order."""
        return self.chain or (self.node,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOn(Step):
    """New values of an update become a stream; they stay where they are."""

    node: NewValues


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRows(Step):
    """Compute a node's rows now, once, and leave them on the executors."""

    update: Update | None = None
    """For whom: its rows get the number of the state's partition that they go to."""

    counts_aside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRows(Step):
    """Compute a node's rows now and bring them into the driver, for an update."""

    update: Update


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRows(Step):
    """Compute a node's rows now, for what its operations do besides: nobody reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectHere(Step):
    """Leave out fields of rows that are in the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskState(Step):
    """Answer a query, now: after the next update the answers would be others.

    Asked by the driver, the rows come there first if they are not there yet.
    """

    node: Query
    by: By
    comes_back: bool = False
    """The answered rows go back to the partitions that they came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState(Step):
    """Write an update's rows to its state."""

    node: Update
    by: By
    one_partition: bool = False
    """The rows have no number of a partition: there is only one, and the driver writes to it."""


@dataclass(frozen=True)
class Schedule:
    """The steps of a batch, in order."""

    processing: tuple[Step, ...]
    commit: tuple[Step, ...]

    def phase(self, phase: Phase) -> tuple[Step, ...]:
        """Return the steps of a phase."""
        return self.processing if phase is Phase.PROCESSING else self.commit

    def __iter__(self) -> Iterator[Step]:
        """Go through the steps of both phases."""
        return iter((*self.processing, *self.commit))


def schedule(plan: Plan, conf: Config, facts: Facts) -> Schedule:
    """Return what a batch does, if these are the facts."""
    return _Scheduling(plan, conf, facts).schedule()


def python_chains(plan: Plan) -> list[list[Node]]:
    """Return the chains of nodes that share one visit to a Python worker, in their order."""
    found: list[list[Node]] = []
    inside: set[Node] = set()
    for node in reversed(plan.nodes):
        chain = [] if node in inside else _python_chain(plan, node)
        if chain:
            found.append(chain)
            inside.update(chain)
    return found[::-1]


def read_by_one_task(plan: Plan, facts: Facts) -> set[Source]:
    """Return the sources that one task reads, so that nothing behind them has to be shuffled.

    Only if all that is done with their rows is done by the JVM: nobody knows how long a function
    in Python takes, and several tasks run it at once.
    """
    if not facts.tiny or any(_written_by_tasks(plan, u, facts) for u in plan.updates.values()):
        return set()
    return {
        source
        for source in plan.sources.values()
        if plan.widths[source] is None
        and source.spout.read_in is not RunsIn.PYTHON
        and all(_reduces_in_jvm(node) for node in _behind(plan, source))
    }


def counted_in_visit(plan: Plan, node: Node) -> Aggregate | None:
    """Return the count that follows a chain of Python, if its groups can be counted in the visit.

    Its groups must be told apart in Python as Spark does it: numbers with a point, which have two
    zeros, and texts with a collation are left to Spark.
    """
    reader = plan.children[node][0] if len(plan.children[node]) == 1 else None
    if not isinstance(reader, Aggregate) or not reader.group or not reader.is_native:
        return None
    counts = [type(one.aggregator) is Count for one in reader.aggregations] == [True]
    plain = all(node.schema.type_of(key) in _PLAIN_KEYS for key in reader.group)
    return reader if counts and plain else None


def _behind(plan: Plan, node: Node) -> Iterator[Node]:
    """Yield all nodes of the processing phase that have rows of this one."""
    for child in plan.children[node]:
        if plan.phases[child] is Phase.PROCESSING:
            yield child
            yield from _behind(plan, child)


def _reduces_in_jvm(node: Node) -> bool:
    return isinstance(node, (RowNode, Aggregate)) and node.is_native


def _written_by_tasks(plan: Plan, update: Update, facts: Facts) -> bool:
    driver_only = plan.states[update.state].factory.driver_only
    return not driver_only and update.state not in facts.collected


def _python_chain(plan: Plan, node: Node) -> list[Node]:
    """Return this node and those before it that fit into one visit.

    Empty if the node itself is no row operation in Python.
    """
    chain: list[Node] = []
    while isinstance(node, RowNode):
        if node.is_native and not (chain and isinstance(node, Project)):
            break
        chain.insert(0, node)
        node = node.parents[0]
        if node in plan.shared:  # it is computed once, for all who read it
            break
    while chain and isinstance(chain[0], Project):
        chain.pop(0)  # in the JVM it costs nothing, and less is sent to Python
    return chain


class _Where(Enum):
    """Where the rows of a node are when its steps are done."""

    DRIVER = "in the driver"
    EXECUTORS = "on the executors"
    NOWHERE = "not computed yet"


@dataclass
class _Scheduling:
    plan: Plan
    conf: Config
    facts: Facts
    steps: list[Step] = field(default_factory=list)
    where: dict[Node, _Where] = field(default_factory=dict)
    ready: set[Update] = field(default_factory=set)
    """Updates whose input has the numbers of partitions already."""

    def schedule(self) -> Schedule:
        plan = self.plan
        self.in_one = read_by_one_task(plan, self.facts)
        widths = plan.widths | dict[Node, int | None].fromkeys(self.in_one, 1)
        self.layout = PartitionLayout(widths, self.conf.state_partitions, dict(self._by_state()))
        chains = [tuple(chain) for chain in python_chains(plan)]
        self.chains = {chain[-1]: chain for chain in chains}
        self.inside = {node for chain in chains for node in chain[:-1]}
        for node in plan.nodes:
            if plan.phases[node] is Phase.PROCESSING and node not in self.inside:
                self._process(node)
        processing, self.steps = tuple(self.steps), []
        for node in plan.commit_order:
            if node not in self.inside:
                self._commit(node)
        return Schedule(processing, tuple(self.steps))

    def _by_state(self) -> Iterator[tuple[Node, Exchange]]:
        """Find aggregates whose one shuffle can be the one to the state's partitions."""
        plan = self.plan
        for update in plan.updates.values():
            node, spec = update.parents[0], plan.states[update.state]
            if not isinstance(node, Aggregate) or not isinstance(update.updating, CombineInto):
                continue
            keys = update.updating.keys
            fits = node.scope is Scope.BATCH and bool(keys) and node.group == keys
            # Spark gives its own aggregates the number of partitions that it is set to.
            same = not node.is_native or self.facts.shuffle_partitions == spec.partitions
            alone = len(plan.children[node]) == 1 and plan.widths[node] is None
            # Texts with a collation are shuffled by another hash than the one of `hash()`.
            collated = any("collate" in str(node.schema.type_of(key)).lower() for key in keys)
            by_tasks = _written_by_tasks(plan, update, self.facts)
            if fits and same and alone and not collated and by_tasks:
                exchange = Exchange(node, Deal.BY_STATE, spec.partitions, keys, spec.name)
                yield node, exchange

    def _process(self, node: Node) -> None:
        plan = self.plan
        aside = self._aside(node)
        match node:
            case Source():
                empty = node.hidden and not self.facts.requests
                self._add(ReadSource(node=node, exchanges=self._behind(node), is_empty=empty))
            case Query() if plan.states[node.state].factory.driver_only:
                self._ask_here(node, f"rows come to the driver to ask {node.state}")
            case _:
                self._derive(node, aside)
        late = [child for child in plan.children[node] if plan.phases[child] is Phase.COMMIT]
        if not plan.children[node]:
            self._add(DropRows(node=node, job="nobody reads it; computed all the same"))
        elif len(late) == 1 and isinstance(late[0], Update):
            self._prepare(late[0], node, aside)
        elif late:
            self._keep(node, f"kept for {self._readers(node)}")
        elif node in plan.shared and self.where.get(node) is not _Where.DRIVER:
            self._keep(node, f"computed once for {self._readers(node)}")

    def _derive(self, node: Node, aside: tuple[Node, ...] = ()) -> None:
        exchanges = (*node.exchanges(self.layout), *self._behind(node))
        step = Derive(node=node, exchanges=exchanges, only_aside=aside)
        if chain := self.chains.get(node, ()):
            step = replace(step, chain=chain, counts=counted_in_visit(self.plan, node))
        elif isinstance(node, Aggregate) and node.parents[0] in self.chains:
            step = replace(step, adds_up=counted_in_visit(self.plan, node.parents[0]) is node)
        self._add(step)

    def _behind(self, node: Node) -> tuple[Exchange, ...]:
        """Return how the rows of a group's first node come onto the partitions of the group."""
        width = None if node.fills_partitions else self.layout.widths.get(node)
        if width is None:
            return ()
        deal = Deal.IN_ONE_TASK if width == 1 else Deal.EVENLY
        return (Exchange(node, deal, width, behind=True),)

    def _aside(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes without whose bad rows this one has nothing to do; () if it has."""
        if isinstance(node, SortedOut) and node.aside:
            return self._aside(self.plan.children[node][0])
        readers = self.plan.children[node]
        writes = len(readers) == 1 and isinstance(readers[0], Update)
        if not writes or not self.plan.states[getattr(readers[0], "state", "")].hidden:
            return ()
        return tuple(p.parents[0] if isinstance(p, SortedOut) else p for p in node.parents)

    def _keep(self, node: Node, why: str) -> None:
        # What was put aside is counted: mostly it is nothing, and that saves a job.
        sorts = isinstance(node, (Isolated, Sifted))
        # Text is malformed only where a record is too long, which is known when it is read.
        known = isinstance(node, Sifted) and node.reader.format == "text"
        aside = (node.parents[0],) if known else ()
        self._add(KeepRows(node=node, job=why, counts_aside=sorts, only_aside=aside))
        self.where[node] = _Where.EXECUTORS

    def _prepare(self, update: Update, node: Node, aside: tuple[Node, ...] = ()) -> None:
        """Compute the input of an update and put it where the update works best."""
        self.ready.add(update)
        if update.state in self.facts.collected:
            why = f"collected for the {update.title}"
            self._add(CollectRows(node=node, update=update, job=why, only_aside=aside))
            self.where[node] = _Where.DRIVER
            return
        spec = self.plan.states[update.state]
        exchange = Exchange(update, Deal.BY_STATE, spec.partitions, state=spec.name)
        there = any(
            e.deal is Deal.BY_STATE for s in self.steps if s.node is node for e in s.exchanges
        )
        moves = () if spec.factory.driver_only or there else (exchange,)
        why = f"kept on the executors for the {update.title}"
        self._add(KeepRows(node=node, update=update, exchanges=moves, job=why))
        self.where[node] = _Where.EXECUTORS

    def _commit(self, node: Node) -> None:
        match node:
            case NewValues():
                self._add(PassOn(node=node, exchanges=self._behind(node)))
                self.where[node] = self.where[node.parents[0]]
            case Update():
                self._write(node)
            case Query():
                self._ask(node)
            case _:
                self._compute(node)

    def _write(self, node: Update) -> None:
        source, spec = node.parents[0], self.plan.states[node.state]
        fits = node.state in self.facts.collected
        here = self.where.get(source) is _Where.DRIVER and fits and spec.partitions == 1
        one = here and node not in self.ready
        if node not in self.ready and not here:
            self._prepare(node, source)
        if self.where[source] is _Where.DRIVER:
            self._add(WriteState(node=node, by=By.DRIVER, one_partition=one))
        elif spec.factory.driver_only:
            job = "its rows come to the driver, a chunk at a time"
            again = bool(node.chunk_keys)
            self._add(WriteState(node=node, by=By.CHUNKS, job=job, repeats=again))
        else:
            self._add(WriteState(node=node, by=By.TASKS, job="written by tasks"))
            self.where[node] = _Where.EXECUTORS
            return
        self.where[node] = _Where.DRIVER

    def _ask(self, node: Query) -> None:
        where = self.where.get(node.parents[0], _Where.NOWHERE)
        if where is _Where.EXECUTORS and not self.plan.states[node.state].factory.driver_only:
            self._add(AskState(node=node, by=By.TASKS, job=f"tasks ask {node.state}"))
            self.where[node] = _Where.EXECUTORS
            return
        alone = self.plan.width_of(node) in (None, 1)
        there = where is _Where.DRIVER and alone
        self._ask_here(node, None if there else f"rows come to the driver to ask {node.state}")

    def _ask_here(self, node: Query, job: str | None) -> None:
        width = self.plan.width_of(node)
        back = width is not None and width > 1
        moves = (Exchange(node, Deal.EVENLY, width, behind=True),) if back else ()
        self._add(AskState(node=node, by=By.DRIVER, exchanges=moves, job=job, comes_back=back))
        self.where[node] = _Where.NOWHERE if back else _Where.DRIVER

    def _compute(self, node: Node) -> None:
        """Add the steps of any other node of the commit phase."""
        readers = self.plan.children[node]
        waits = len(readers) == 1 and not isinstance(readers[0], (Update, Query))
        here = self.where.get(node.parents[0]) is _Where.DRIVER
        if here and not waits and isinstance(node, Project) and self._runs_in_one(node):
            self._add(SelectHere(node=node))
            self.where[node] = _Where.DRIVER
            return
        self._derive(node)
        if not readers:
            self._add(DropRows(node=node, job="nobody reads it"))
        elif len(readers) > 1:
            self._keep(node, f"computed once for {self._readers(node)}")

    def _runs_in_one(self, node: Node) -> bool:
        return self.plan.width_of(node) in (None, 1)

    def _readers(self, node: Node) -> str:
        return " and ".join(str(child.number) for child in self.plan.children[node])

    def _add(self, step: Step) -> None:
        self.steps.append(step)
