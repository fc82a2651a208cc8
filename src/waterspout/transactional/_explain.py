"""A transactional topology as text: components, phases, and what is promised."""

from __future__ import annotations

from waterspout._config import Config
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._runtime import commit_stages
from waterspout.transactional._spouts import OpaquePartitionedTransactionalSpout
from waterspout.waves.explain import describe_component, describe_stages
from waterspout.waves.shape import spread

__all__ = ["explain"]


def explain(topology: TransactionalTopology, conf: Config, workers: int) -> str:
    """Return the plan of a topology's batches, and what each committer must do itself."""
    opaque = isinstance(
        topology.components[topology.spout_id].component, OpaquePartitionedTransactionalSpout
    )
    lines = [f"{topology.name}: a transactional topology", ""]
    for spec in topology.components.values():
        lines += describe_component(topology, spec)
    shape = spread(topology.outline(), workers)
    lines += ["", f"in flight at once: {conf.max_batches} at most; in commit: one"]
    lines.append(f"processing: 1 job, {len(shape.stages)} stages")
    lines += describe_stages(shape)
    late = topology.late
    stages = commit_stages(shape, late)
    if not stages:
        lines.append("commit: nothing to do, there is no committer")
    else:
        lines.append(f"commit: 1 job, {len(stages)} stages; these finish then:")
        lines += [
            f"  {name}{' (committer)' if name in topology.committers else ', behind a committer'}"
            for stage in shape.stages
            for name in stage.components
            if name in late
        ]
    kind = "opaque" if opaque else "transactional"
    lines += ["", f"the spout is {kind}: exactly-once if each committer"]
    if opaque:
        lines += [
            "  keeps (txid, attempt, value, prev) and takes context.resolved into account, as",
            "  waterspout.state.OpaqueMap does, in a store that takes nothing over a later attempt",
        ]
    else:
        lines += ["  keeps the txid with each value and skips a batch that is not later than it"]
    lines.append(
        "a committer is the user's code: what it writes is fenced only if its store checks that"
    )
    return "\n".join(lines)
