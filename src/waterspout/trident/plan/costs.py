"""What a batch costs: the jobs and shuffles among the steps of its schedule. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from waterspout._config import Config
from waterspout.spouts._reads import TINY_BYTES, TINY_ROWS
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.nodes import Aggregate
from waterspout.trident.plan.plan import Phase, Plan
from waterspout.trident.plan.schedule import Facts, Schedule, Step, schedule

__all__ = ["Case", "Cost", "case_name", "cases", "cost_of", "usual_case"]


_TINY = f"no more than {TINY_ROWS:,} rows, or {TINY_BYTES // 1_000_000} MB in files"


class Case(Enum):
    """How large a batch and its results are; the engine learns it from the batches before."""

    TINY = "tiny"
    COLLECTED = "collected"
    BY_TASKS = "by tasks"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one batch costs in which nobody puts a row aside."""

    schedule: Schedule
    broadcasts: int
    """Joins for which Spark may send a small side to all tasks: a job more, shuffles less."""

    def jobs(self, phase: Phase) -> list[Step]:
        """Return the steps of a phase that run a Spark job."""
        steps = self.schedule.phase(phase)
        return [step for step in steps if step.job is not None and not step.only_aside]

    @property
    def shuffles(self) -> list[Exchange]:
        """All exchanges in which rows are sent from task to task."""
        return [e for step in self.schedule for e in step.exchanges if e.is_shuffle]

    @property
    def avoidable(self) -> list[Exchange]:
        """Shuffles that Spark leaves out where it is set to shuffle over as many partitions.

        Rows that its own aggregates have grouped by key are then on the right partitions.
        """
        native = {
            e.node for e in self.shuffles if isinstance(e.node, Aggregate) and e.node.is_native
        }
        written = (e for e in self.shuffles if e.deal is Deal.BY_STATE and not e.behind)
        return [e for e in written if e.node not in native and native & set(e.node.parents)]

    def text(self) -> str:
        """Return the sum of it in words."""
        early, late = self.jobs(Phase.PROCESSING), self.jobs(Phase.COMMIT)
        more = " or more" if any(step.repeats for step in late) else ""
        moves = _counted(len(self.shuffles), "shuffle") if self.shuffles else "no shuffle"
        jobs = _counted(len(early), "job")
        return f"{jobs} for processing, {len(late)}{more} for commit; {moves}"


def cases(plan: Plan, conf: Config) -> list[Case]:
    """Return the cases that can happen, small before large.

    With nothing to commit they are one. That a batch is tiny is a case of its own only where it
    costs less.
    """
    found = [Case.COLLECTED, Case.BY_TASKS]
    if not plan.updates or conf.commit_in == "driver":
        found = [Case.COLLECTED]
    elif conf.commit_in == "tasks":
        found = [Case.BY_TASKS]
    tiny, usual = (cost_of(plan, conf, case) for case in (Case.TINY, Case.COLLECTED))
    saves = Case.COLLECTED in found and len(tiny.shuffles) < len(usual.shuffles)
    return [Case.TINY, *found] if saves else found


def usual_case(plan: Plan, conf: Config) -> Case:
    """Return the first case that is not a matter of tiny batches."""
    return next(case for case in cases(plan, conf) if case is not Case.TINY)


def case_name(plan: Plan, conf: Config, case: Case) -> str:
    """Return when a case happens, in words."""
    if case is Case.TINY:
        return f"a tiny batch ({_TINY}), in one task"
    if set(cases(plan, conf)) - {Case.TINY} == {case}:
        return "every batch" if len(cases(plan, conf)) == 1 else "every larger batch"
    if case is Case.COLLECTED:
        return "while results fit the driver"
    by_tasks = any(not plan.states[name].factory.driver_only for name in plan.updates)
    return "by tasks, if they do not" if by_tasks else "in chunks, if they do not"


def cost_of(plan: Plan, conf: Config, case: Case, shuffle_partitions: int | None = None) -> Cost:
    """Return what a batch costs in a case, if nobody asks for dead letters.

    `shuffle_partitions`: what Spark is set to, if that is known.
    """
    collected = [n for n in plan.updates if case is not Case.BY_TASKS or plan.states[n].hidden]
    tiny = case is Case.TINY
    facts = Facts(frozenset(collected), shuffle_partitions=shuffle_partitions, tiny=tiny)
    steps = schedule(plan, conf, facts)
    return Cost(steps, sum(node.broadcasts for node in plan.nodes))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
