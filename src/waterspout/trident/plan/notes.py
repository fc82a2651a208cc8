"""What is worth saying of each node of a plan, whatever it is shown in. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from waterspout._config import Config
from waterspout.spouts._base import RunsIn
from waterspout.trident.plan.costs import cost_of, usual_case
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.nodes import (
    Aggregate,
    NewValues,
    Node,
    Query,
    Scope,
    Source,
    Update,
)
from waterspout.trident.plan.partitions import why_in_one
from waterspout.trident.plan.plan import Phase, Plan
from waterspout.trident.plan.schedule import Derive, KeepRows, Schedule

__all__ = ["NodeNotes", "notes_of"]


@dataclass(frozen=True, slots=True)
class NodeNotes:
    """What is known of a node before anything runs."""

    node: Node
    phase: Phase
    runs_in: RunsIn | None
    """None: it does nothing, or only a batch tells."""

    visit: tuple[Node, ...]
    """The nodes, this one among them, that share a visit to a Python worker."""

    exchanges: tuple[Exchange, ...]
    partitions: int | None
    """Over how many partitions it runs; None: as Spark chooses."""

    readers: tuple[Node, ...]
    """Those for whom it is computed once, if they are several."""

    staged: bool
    """Whether its rows are left for the commit phase."""

    carried: tuple[str, ...] | None
    """The fields that go on, if nobody reads the others."""

    counted_by: Node | None = None
    """The node in whose visit to a Python worker its groups are counted first, if they are."""

    in_one: str | None = None
    """Why the state that it updates has one partition, if it has to have one."""

    @property
    def shuffles(self) -> list[Exchange]:
        """The exchanges in which rows are sent from task to task."""
        return [exchange for exchange in self.exchanges if exchange.is_shuffle]

    def notes(self) -> list[str]:
        """Return it all in words, where it runs first."""
        notes = [note for note in (self._where(), self._spread()) if note]
        notes += [f"shuffle {e.text()}" for e in self.shuffles if not e.behind]
        notes += [f"then shuffle {e.text()}" for e in self.shuffles if e.behind]
        if self.readers:
            notes.append(f"computed once for {_numbers(self.readers)}")
        if self.staged:
            notes.append("staged for the commit")
        if self.carried is not None:
            notes.append(f"carries only {', '.join(self.carried)}")
        if self.in_one is not None:
            notes.append(f"1 partition, because {self.in_one}")
        return notes

    def _where(self) -> str:
        if self.runs_in is None:
            return ""
        others = [node for node in self.visit if node is not self.node]
        if others:
            return f"{self.runs_in.value}, in one visit with {_numbers(others)}"
        node = self.node
        if self.counted_by is not None:
            return f"{self.runs_in.value}, counted first in the visit of {self.counted_by.number}"
        whole = isinstance(node, Aggregate) and node.combines and node.scope is Scope.BATCH
        if whole and self.runs_in is RunsIn.PYTHON and not all(e.behind for e in self.exchanges):
            return f"{self.runs_in.value}, before the shuffle and behind it"
        return self.runs_in.value

    def _spread(self) -> str:
        if any(e.deal is Deal.IN_ONE_TASK for e in self.exchanges):
            return Deal.IN_ONE_TASK.value
        told = any(e.partitions is not None for e in self.shuffles)
        if self.partitions is None or told:
            return ""
        return "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"


def notes_of(plan: Plan, conf: Config) -> dict[Node, NodeNotes]:
    """Return the notes of every node, in the order of the plan, for the usual case."""
    steps = cost_of(plan, conf, usual_case(plan, conf)).schedule
    return {node: _notes(plan, conf, node, steps) for node in plan.nodes}


def _notes(plan: Plan, conf: Config, node: Node, steps: Schedule) -> NodeNotes:
    children = plan.children[node]
    late = any(plan.phases[child] is Phase.COMMIT for child in children)
    derived = [step for step in steps if isinstance(step, Derive)]
    visits = [step.chain for step in derived if node in step.chain]
    # What a state's tasks write is moved by the update; that is told with the costs.
    moves = [s.exchanges for s in steps if s.node is node and not isinstance(s, KeepRows)]
    runs_in = RunsIn.PYTHON if visits else _runs_in(plan, conf, node)
    kept = plan.kept[node].names
    fewer = runs_in is RunsIn.PYTHON and len(kept) < len(node.schema) and bool(children)
    return NodeNotes(
        node=node,
        phase=plan.phases[node],
        runs_in=runs_in,
        visit=visits[0] if visits else (),
        exchanges=tuple(exchange for some in moves for exchange in some),
        partitions=None if isinstance(node, Update) else plan.width_of(node),
        readers=() if len(children) < 2 or getattr(node, "hidden", False) else tuple(children),
        staged=late and plan.phases[node] is Phase.PROCESSING,
        carried=kept if fewer else None,
        counted_by=next((step.node for step in derived if step.counts is node), None),
        in_one=_in_one(plan, node),
    )


def _in_one(plan: Plan, node: Node) -> str | None:
    if not isinstance(node, Update) or plan.states[node.state].hidden:
        return None
    return why_in_one(node, plan.states[node.state].factory.kind)


def _runs_in(plan: Plan, conf: Config, node: Node) -> RunsIn | None:
    match node:
        case Source(spout=spout):
            return spout.read_in
        case NewValues():
            return None
        case Query(state=state) | Update(state=state):
            if plan.states[state].factory.driver_only:
                return RunsIn.DRIVER
            if isinstance(node, Query):
                return _query_runs_in(plan, node)
            by_choice = {"driver": RunsIn.DRIVER, "tasks": RunsIn.PYTHON}
            return by_choice.get(conf.commit_in, RunsIn.EITHER)
    return RunsIn.JVM if node.is_native else RunsIn.PYTHON


def _query_runs_in(plan: Plan, node: Query) -> RunsIn:
    """Return who asks a state that executors reach: whoever has the rows."""
    if plan.phases[node.parents[0]] is Phase.PROCESSING:
        return RunsIn.PYTHON
    return RunsIn.EITHER if isinstance(node.parents[0], (NewValues, Query)) else RunsIn.DRIVER


def _numbers(nodes: tuple[Node, ...] | list[Node]) -> str:
    numbers = [str(node.number) for node in nodes]
    return " and ".join([", ".join(numbers[:-1]), numbers[-1]]) if numbers[1:] else numbers[0]
