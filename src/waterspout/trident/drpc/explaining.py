"""What `explain` says of a DRPC stream: where requests run, through what, and what they see."""

from __future__ import annotations

from waterspout.state._base import StateKind
from waterspout.trident.drpc.streams import DrpcStream, why_spark
from waterspout.trident.plan.graph import printable
from waterspout.trident.plan.nodes import Node, Query
from waterspout.trident.plan.plan import Plan, StateSpec

__all__ = ["drpc_lines"]

_COMMITTED = "committed values"


def drpc_lines(stream: DrpcStream, plan: Plan) -> list[str]:
    """Return the lines of one function."""
    why = why_spark(stream, plan.hints)
    where = "in the driver, without a Spark job"
    if why is not None:
        where = f"one Spark job for all requests that wait, because {why}"
    lines = [f"drpc {printable(stream.function)} ({printable(where)})"]
    lines += [_node_line(node) for node in stream.nodes]
    result = stream.result
    fields = printable(str(result.schema))
    lines.append(f"  answers with {result.number} {printable(result.title)}: [[{fields}], ...]")
    for name in stream.states:
        lines.append(f"  {name}: {_seen(plan.states[name], updated=name in plan.updates)}")
    return lines


def _node_line(node: Node) -> str:
    after = ", ".join(str(parent.number) for parent in node.parents)
    came = f" <- {after}" if after else ""
    extra = f" on {node.state}" if isinstance(node, Query) else ""
    fields = printable(str(node.schema))
    return f"  {node.number:>2}{came}  {printable(node.title + extra)}  ({fields})"


def _seen(spec: StateSpec, *, updated: bool) -> str:
    """Say what a request sees of a state."""
    kind, fenced = spec.factory.kind, spec.factory.fenced
    if kind is StateKind.OPAQUE and fenced:
        return _COMMITTED
    if kind is StateKind.TRANSACTIONAL and fenced and updated:
        return f"{_COMMITTED}; a request waits where a batch is being committed to a key it asks"
    if not updated:
        return "only read here: what it answers"
    reason = "it keeps no older value" if fenced else "its store has no fence"
    return f"also values of a batch that is being committed, for {reason}"
