"""What is worth saying of each node of a plan, whatever it is shown in. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from waterspout.config import Config
from waterspout.spouts.dataframe import DataFrameSource
from waterspout.spouts.emitters import EmittedSource
from waterspout.spouts.emitting import EmittingSource
from waterspout.spouts.files import FileSpout
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.spouts.pulled import PulledSource
from waterspout.spouts.rate import RateSpout
from waterspout.trident.plan.chains import python_chains
from waterspout.trident.plan.native import is_native
from waterspout.trident.plan.nodes import (
    Aggregate,
    Isolated,
    NewValues,
    Node,
    Query,
    Scope,
    Source,
    Update,
)
from waterspout.trident.plan.plan import Phase, Plan
from waterspout.trident.plan.shuffles import Shuffle, gathers, shuffles_of

__all__ = ["Facts", "Place", "facts_of"]


class Place(Enum):
    """Where a node runs."""

    JVM = "JVM"
    PYTHON = "Python"
    DRIVER = "driver"
    EITHER = "driver, or Python tasks if there is much"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a node before anything runs."""

    node: Node
    phase: Phase
    place: Place | None
    """None: it does nothing, or only a batch tells."""

    visit: tuple[Node, ...]
    """The nodes, this one among them, that share a visit to a Python worker."""

    shuffles: tuple[Shuffle, ...]
    partitions: int | None
    """Over how many partitions it runs; None: as Spark chooses."""

    gathers: bool
    readers: tuple[Node, ...]
    """Those for whom it is computed once, if they are several."""

    staged: bool
    """Whether its rows are left for the commit phase."""

    carried: tuple[str, ...] | None
    """The fields that go on, if nobody reads the others."""

    def notes(self) -> list[str]:
        """Return it all in words, the place first."""
        notes = [note for note in (self._where(), self._spread()) if note]
        notes += [f"shuffle {shuffle.text()}" for shuffle in self.shuffles if shuffle.into]
        notes += [f"then shuffle {s.text()}" for s in self.shuffles if not s.into]
        if self.readers:
            notes.append(f"computed once for {_numbers(self.readers)}")
        if self.staged:
            notes.append("staged for the commit")
        if self.carried is not None:
            notes.append(f"carries only {', '.join(self.carried)}")
        return notes

    def _where(self) -> str:
        if self.place is None:
            return ""
        others = [node for node in self.visit if node is not self.node]
        if others:
            return f"{self.place.value}, in one visit with {_numbers(others)}"
        node = self.node
        whole = isinstance(node, Aggregate) and node.combines and node.scope is Scope.BATCH
        if whole and self.place is Place.PYTHON and any(s.into for s in self.shuffles):
            return f"{self.place.value}, before the shuffle and behind it"
        return self.place.value

    def _spread(self) -> str:
        if self.gathers:
            return "all rows in one task"
        told = any(shuffle.partitions is not None for shuffle in self.shuffles)
        if self.partitions is None or told:
            return ""
        return "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"


def facts_of(plan: Plan, conf: Config) -> dict[Node, Facts]:
    """Return the facts of every node, in the order of the plan."""
    visits = {node: tuple(chain) for chain in python_chains(plan) for node in chain}
    return {node: _facts(plan, conf, node, visits.get(node, ())) for node in plan.nodes}


def _facts(plan: Plan, conf: Config, node: Node, visit: tuple[Node, ...]) -> Facts:
    children = plan.children[node]
    late = any(plan.phases[child] is Phase.COMMIT for child in children)
    place = Place.PYTHON if visit else _place(plan, conf, node)
    kept = plan.kept[node].names
    fewer = place is Place.PYTHON and len(kept) < len(node.schema) and bool(children)
    return Facts(
        node=node,
        phase=plan.phases[node],
        place=place,
        visit=visit,
        shuffles=tuple(shuffles_of(plan, node, conf)),
        partitions=None if isinstance(node, Update) else plan.width_of(node),
        gathers=gathers(plan, node),
        readers=() if len(children) < 2 or getattr(node, "hidden", False) else tuple(children),
        staged=late and plan.phases[node] is Phase.PROCESSING,
        carried=kept if fewer else None,
    )


def _place(plan: Plan, conf: Config, node: Node) -> Place | None:
    match node:
        case Source(spout=spout, hidden=hidden):
            return Place.DRIVER if hidden else _source_place(spout)
        case NewValues():
            return None
        case Query(state=state) | Update(state=state):
            if plan.states[state].factory.driver_only:
                return Place.DRIVER
            if isinstance(node, Query):
                return _query_place(plan, node)
            by_choice = {"driver": Place.DRIVER, "tasks": Place.PYTHON}
            return by_choice.get(conf.commit_in, Place.EITHER)
        case Isolated():
            return Place.PYTHON
    return Place.JVM if is_native(node) else Place.PYTHON


def _query_place(plan: Plan, node: Query) -> Place:
    """Return who asks a state that executors reach: whoever has the rows."""
    if plan.phases[node.parents[0]] is Phase.PROCESSING:
        return Place.PYTHON
    return Place.EITHER if isinstance(node.parents[0], (NewValues, Query)) else Place.DRIVER


def _source_place(spout: object) -> Place | None:
    for place, kinds in _READ_IN.items():
        if isinstance(spout, kinds):
            return place
    return None  # it says so only with each batch


_READ_IN: dict[Place, tuple[type, ...]] = {
    Place.JVM: (FileSpout, RateSpout, DataFrameSource),
    Place.PYTHON: (EmittedSource, EmittingSource),
    Place.DRIVER: (FixedBatchSpout, PulledSource),
}


def _numbers(nodes: tuple[Node, ...] | list[Node]) -> str:
    numbers = [str(node.number) for node in nodes]
    return " and ".join([", ".join(numbers[:-1]), numbers[-1]]) if numbers[1:] else numbers[0]
