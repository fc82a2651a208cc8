"""What a batch costs: Spark jobs and shuffles, phase by phase. Pure functions.

They follow the engine step by step without its data; tests count the jobs of real batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from waterspout.config import Config
from waterspout.trident.plan.nodes import NewValues, Node, Project, Query, Source, Update
from waterspout.trident.plan.plan import Phase, Plan
from waterspout.trident.plan.shuffles import Shuffle, broadcasts_of, shuffles_of, write_shuffle

__all__ = [
    "Case",
    "Cost",
    "Job",
    "case_name",
    "cases",
    "cost_of",
    "is_answered_in_driver",
    "is_projected_in_driver",
    "waits_for_reader",
]


class Case(Enum):
    """How large the results of a batch are; the engine learns it from the batches before."""

    COLLECTED = "collected"
    BY_TASKS = "by tasks"


@dataclass(frozen=True, slots=True)
class Job:
    """One Spark job of a batch."""

    phase: Phase
    node: Node
    why: str
    repeats: bool = False
    """Once for each piece of a result that is too large to come at once."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one batch costs."""

    jobs: tuple[Job, ...]
    shuffles: tuple[Shuffle, ...]
    broadcasts: int
    """Joins for which Spark may send a small side to all tasks: a job more, shuffles less."""

    def jobs_in(self, phase: Phase) -> int:
        """Return how many jobs a phase has."""
        return sum(job.phase is phase for job in self.jobs)

    def text(self) -> str:
        """Return the sum of it in words."""
        early, late = self.jobs_in(Phase.PROCESSING), self.jobs_in(Phase.COMMIT)
        more = " or more" if any(job.repeats for job in self.jobs) else ""
        moves = _counted(len(self.shuffles), "shuffle") if self.shuffles else "no shuffle"
        return f"{_counted(early, 'job')} for processing, {late}{more} for commit; {moves}"


def cases(plan: Plan, conf: Config) -> list[Case]:
    """Return the cases that can happen; with nothing to commit they are all one."""
    if not plan.updates or conf.commit_in == "driver":
        return [Case.COLLECTED]
    return [Case.BY_TASKS] if conf.commit_in == "tasks" else list(Case)


def case_name(plan: Plan, conf: Config, case: Case) -> str:
    """Return when a case happens, in words."""
    if len(cases(plan, conf)) == 1:
        return "every batch"
    if case is Case.COLLECTED:
        return "while results fit the driver"
    by_tasks = any(not plan.states[name].factory.driver_only for name in plan.updates)
    return "by tasks, if they do not" if by_tasks else "in parts, if they do not"


def cost_of(plan: Plan, conf: Config, case: Case) -> Cost:
    """Return what a batch costs in a case."""
    jobs = _Counting(plan, case).jobs()
    shuffles = [shuffle for node in plan.nodes for shuffle in shuffles_of(plan, node, conf)]
    if case is Case.BY_TASKS:
        written = (write_shuffle(plan, update) for update in plan.updates.values())
        shuffles += [shuffle for shuffle in written if shuffle is not None]
    broadcasts = sum(map(broadcasts_of, plan.nodes))
    return Cost(tuple(jobs), tuple(shuffles), broadcasts)


def is_answered_in_driver(plan: Plan, node: Node) -> bool:
    """Whether a node's rows have come through the driver, so that they need no keeping."""
    if not isinstance(node, Query) or plan.phases[node] is not Phase.PROCESSING:
        return False
    return plan.states[node.state].factory.driver_only and plan.width_of(node) in (None, 1)


def is_projected_in_driver(plan: Plan, node: Node) -> bool:
    """Whether a node only leaves out fields, so that rows in the driver can stay there."""
    return isinstance(node, Project) and plan.width_of(node) in (None, 1)


def waits_for_reader(plan: Plan, node: Node) -> bool:
    """Whether a node of the commit phase is computed together with the only one that reads it."""
    readers = plan.children[node]
    return len(readers) == 1 and not isinstance(readers[0], (Update, Query))


class _Where(Enum):
    """Where the rows of a node are when it is done."""

    DRIVER = "in the driver"
    EXECUTORS = "on the executors"
    NOWHERE = "not computed yet"


class _Counting:
    """Goes through both phases as the engine does, and notes each job."""

    def __init__(self, plan: Plan, case: Case) -> None:
        self._plan = plan
        self._collects = case is Case.COLLECTED
        self._jobs: list[Job] = []
        self._where: dict[Node, _Where] = {}
        self._dealt: set[Node] = set()
        """Updates whose input knows its partitions already."""

    def jobs(self) -> list[Job]:
        """Return the jobs of one batch in their order."""
        plan = self._plan
        early = [node for node in plan.nodes if plan.phases[node] is Phase.PROCESSING]
        for node in early:
            if isinstance(node, Query) and plan.states[node.state].factory.driver_only:
                self._note(Phase.PROCESSING, node, f"rows come to the driver to ask {node.state}")
        for node in early:
            once = node in plan.shared and node not in plan.staged
            if once and not (is_answered_in_driver(plan, node) or _is_hidden(node)):
                self._note(Phase.PROCESSING, node, f"computed once for {self._readers(node)}")
        for node in plan.staged:
            self._stage(node)
        for node in plan.commit_order:
            self._commit(node)
        return self._jobs

    def _stage(self, node: Node) -> None:
        readers = self._plan.children[node]
        late = [child for child in readers if self._plan.phases[child] is Phase.COMMIT]
        if not late:
            self._note(Phase.PROCESSING, node, "nobody reads it; computed all the same")
        elif len(late) == 1 and isinstance(late[0], Update):
            self._place(Phase.PROCESSING, node, late[0])
        else:
            self._note(Phase.PROCESSING, node, f"kept for {self._readers(node)}")
            self._where[node] = _Where.EXECUTORS

    def _place(self, phase: Phase, node: Node, update: Update) -> None:
        """Put the input of an update where the update works best."""
        hidden = self._plan.states[update.state].hidden
        if hidden and phase is Phase.PROCESSING:
            self._where[node] = _Where.DRIVER  # as a rule there is nothing, and that is known
        elif self._collects or hidden:
            self._note(phase, node, f"collected for the {update.title}")
            self._where[node] = _Where.DRIVER
        else:
            self._note(phase, node, f"kept on the executors for the {update.title}")
            self._where[node] = _Where.EXECUTORS
        self._dealt.add(update)

    def _commit(self, node: Node) -> None:
        match node:
            case NewValues():
                self._where[node] = self._where[node.parents[0]]
            case Update():
                if node not in self._dealt and not self._stays_here(node):
                    self._place(Phase.COMMIT, node.parents[0], node)
                self._where[node] = self._update(node)
            case Query():
                self._where[node] = self._query(node)
            case _:
                self._where[node] = self._derive(node)

    def _stays_here(self, node: Update) -> bool:
        here = self._where[node.parents[0]] is _Where.DRIVER and self._collects
        return here and self._plan.states[node.state].partitions == 1

    def _update(self, node: Update) -> _Where:
        factory = self._plan.states[node.state].factory
        if self._where[node.parents[0]] is _Where.DRIVER:
            return _Where.DRIVER
        if factory.driver_only:
            keys = bool(getattr(node.updating, "keys", ()))
            self._note(Phase.COMMIT, node, "its rows come to the driver, a part at a time", keys)
            return _Where.DRIVER
        self._note(Phase.COMMIT, node, "written by tasks")
        return _Where.EXECUTORS if self._plan.children[node] else _Where.DRIVER

    def _query(self, node: Query) -> _Where:
        where = self._where[node.parents[0]]
        if where is _Where.EXECUTORS and not self._plan.states[node.state].factory.driver_only:
            self._note(Phase.COMMIT, node, f"tasks ask {node.state}")
            return _Where.EXECUTORS
        alone = self._plan.width_of(node) in (None, 1)
        if where is not _Where.DRIVER or not alone:
            self._note(Phase.COMMIT, node, f"rows come to the driver to ask {node.state}")
        return _Where.DRIVER if alone else _Where.NOWHERE

    def _derive(self, node: Node) -> _Where:
        readers = self._plan.children[node]
        here = self._where.get(node.parents[0]) is _Where.DRIVER
        waits = waits_for_reader(self._plan, node)
        if here and not waits and is_projected_in_driver(self._plan, node):
            return _Where.DRIVER
        if len(readers) == 1:
            return _Where.NOWHERE
        why = f"computed once for {self._readers(node)}" if readers else "nobody reads it"
        self._note(Phase.COMMIT, node, why)
        return _Where.EXECUTORS

    def _readers(self, node: Node) -> str:
        return " and ".join(str(child.number) for child in self._plan.children[node])

    def _note(self, phase: Phase, node: Node, why: str, repeats: bool = False) -> None:
        self._jobs.append(Job(phase, node, why, repeats))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _is_hidden(node: Node) -> bool:
    return isinstance(node, Source) and node.hidden
