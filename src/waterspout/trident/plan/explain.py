"""A plan as text: nodes, phases, and what each state promises and why."""

from __future__ import annotations

from waterspout.config import Config
from waterspout.errors import TopologyError
from waterspout.trident.plan.nodes import Node, Query, Update
from waterspout.trident.plan.plan import Phase, Plan

__all__ = ["explain", "guarantees", "refuse_weak"]


def explain(plan: Plan, conf: Config) -> str:
    """Return the whole plan as text."""
    lines = [f"topology {plan.name}"]
    for phase in Phase:
        nodes = [n for n in plan.nodes if plan.phases[n] is phase]
        if phase is Phase.COMMIT:
            nodes = plan.commit_order
        if nodes:
            lines.append(f"{phase.value} phase ({_phase_note(phase, conf)})")
            lines += [f"  {_line(node)}" for node in nodes]
    if any(isinstance(node, Update) for node in plan.nodes):
        lines.append("guarantees")
        lines += [f"  {line}" for line in guarantees(plan)]
    return "\n".join(lines)


def guarantees(plan: Plan) -> list[str]:
    """Return, for every state that is updated, whether it is exactly-once and why."""
    lines = []
    for node in plan.nodes:
        if isinstance(node, Update):
            spec = plan.states[node.state]
            exact, why = plan.guarantee(node)
            word = "exactly-once" if exact else "not exactly-once"
            place = spec.factory.location() or type(spec.factory).__name__
            lines.append(f"{node.state} ({place}): {word}: {why}")
            if spec.factory.weakness is not None:
                lines.append(f"  but: {spec.factory.weakness}")
    return lines


def refuse_weak(plan: Plan) -> None:
    """Refuse a plan with a state that is not exactly-once."""
    for node in plan.nodes:
        if isinstance(node, Update) and not plan.guarantee(node)[0]:
            raise TopologyError(
                f"strict=True refuses {node.state}: not exactly-once, because "
                f"{plan.guarantee(node)[1]}. Use an opaque state (and a spout that can replay), or "
                "leave strict off."
            )


def _phase_note(phase: Phase, conf: Config) -> str:
    if phase is Phase.PROCESSING:
        many = conf.max_batches
        return "one batch at a time" if many == 1 else f"up to {many} batches at once"
    return "one batch at a time, in txid order"


def _line(node: Node) -> str:
    after = ", ".join(str(parent.number) for parent in node.parents)
    came = f" <- {after}" if after else ""
    extra = f" on {node.state}" if isinstance(node, Query) else ""
    return f"{node.number:>2}{came}  {node.title}{extra}  ({node.schema})"
