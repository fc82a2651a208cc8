"""A plan as text: nodes, phases, what each batch costs, and what each state promises and why."""

from __future__ import annotations

from waterspout._config import Config
from waterspout.errors import TopologyError
from waterspout.trident.drpc.explaining import drpc_lines
from waterspout.trident.plan.costs import Case, Cost, case_name, cases, cost_of
from waterspout.trident.plan.drawing import to_dot, to_mermaid
from waterspout.trident.plan.graph import printable
from waterspout.trident.plan.nodes import Query, Update
from waterspout.trident.plan.notes import NodeNotes, notes_of
from waterspout.trident.plan.plan import Phase, Plan
from waterspout.trident.plan.verdicts import verdict_of

__all__ = ["explain", "explain_as", "guarantees", "refuse_weak"]


def explain_as(plan: Plan, conf: Config, format: str) -> str:
    """Return the plan in a format: text, mermaid or dot."""
    match format:
        case "text":
            return explain(plan, conf)
        case "mermaid":
            return to_mermaid(plan, conf)
        case "dot":
            return to_dot(plan, conf)
    raise TopologyError(f"explain knows the formats text, mermaid and dot, not {format!r}")


def explain(plan: Plan, conf: Config) -> str:
    """Return the whole plan as text."""
    lines = [f"topology {plan.name}"]
    notes = notes_of(plan, conf)
    for phase in Phase:
        nodes = [n for n in plan.nodes if plan.phases[n] is phase]
        if phase is Phase.COMMIT:
            nodes = plan.commit_order
        if nodes:
            lines.append(f"{phase.value} phase ({_phase_note(phase, conf)})")
            for node in nodes:
                lines += _node_lines(notes[node])
    if plan.nodes:
        lines += _cost_lines(plan, conf)
    if any(isinstance(node, Update) for node in plan.nodes):
        lines.append("guarantees")
        lines += [f"  {line}" for line in guarantees(plan)]
    for call in plan.calls:
        lines += drpc_lines(call, plan)
    return "\n".join(lines)


def guarantees(plan: Plan) -> list[str]:
    """Return, for every state that is updated, whether it is exactly-once and why."""
    lines = []
    for node in plan.nodes:
        if isinstance(node, Update):
            spec = plan.states[node.state]
            verdict = verdict_of(plan, node)
            word = "exactly-once" if verdict.exact else "not exactly-once"
            location = spec.factory.location() or type(spec.factory).__name__
            lines.append(f"{node.state} ({location}): {word}: {verdict.why}")
            if spec.factory.weakness is not None:
                lines.append(f"  but: {spec.factory.weakness}")
            if isinstance(caveat := getattr(node.updating.operation, "caveat", None), str):
                lines.append(f"  but: {caveat}")
    return lines


def refuse_weak(plan: Plan) -> None:
    """Refuse a plan with a state that is not exactly-once."""
    for node in plan.updates.values():
        verdict = verdict_of(plan, node)
        if not verdict.exact:
            raise TopologyError(
                f"strict=True refuses {node.state}: not exactly-once, because {verdict.why}. "
                f"{verdict.remedy}, or leave strict off."
            )


def _phase_note(phase: Phase, conf: Config) -> str:
    if phase is Phase.PROCESSING:
        if conf.chooses_in_flight:
            return "as many batches at once as pays, by their measured times"
        many = conf.max_batches
        return "one batch at a time" if many == 1 else f"up to {many} batches at once"
    return "one batch at a time, in txid order"


def _node_lines(notes: NodeNotes) -> list[str]:
    node = notes.node
    after = ", ".join(str(parent.number) for parent in node.parents)
    came = f" <- {after}" if after else ""
    extra = f" on {node.state}" if isinstance(node, Query) else ""
    title = printable(f"{node.title}{extra}")
    fields = f"  ({printable(str(node.schema))})" if len(node.schema) else ""
    lines = [f"  {node.number:>2}{came}  {title}{fields}"]
    said = notes.notes()
    return [*lines, f"      {printable('; '.join(said))}"] if said else lines


def _cost_lines(plan: Plan, conf: Config) -> list[str]:
    lines = ["jobs per batch"]
    for case in cases(plan, conf):
        cost = cost_of(plan, conf, case)
        lines.append(f"  {case_name(plan, conf, case)}: {cost.text()}")
        lines += [] if case is Case.TINY else _job_lines(cost)  # they are those of the next case
    if cost.broadcasts:
        joins = "a join" if cost.broadcasts == 1 else f"each of {cost.broadcasts} joins"
        lines.append(f"  1 more for {joins} of which Spark sends a small side to all tasks")
    for exchange in cost.avoidable:
        setting = f"spark.sql.shuffle.partitions is {exchange.partitions}"
        lines.append(f"  1 shuffle less for {exchange.state} where {setting}, as many as it has")
    if any(spec.hidden for spec in plan.states.values()):
        lines.append("  1 or 2 more in a batch that puts rows aside or takes letters up again")
    return lines


def _job_lines(cost: Cost) -> list[str]:
    return [
        f"    {phase.value}: {step.node.number} {printable(f'{step.node.title}, {step.job}')}"
        for phase in Phase
        for step in cost.jobs(phase)
    ]
