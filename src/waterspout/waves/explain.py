"""A core topology as text: components, groupings, stages, and what is promised."""

from __future__ import annotations

from collections.abc import Mapping

from waterspout._config import Config
from waterspout.topology._graph import ComponentSpec, Topology
from waterspout.waves.large import LARGE
from waterspout.waves.shape import WaveShape, collapsed, spread

__all__ = ["describe_component", "describe_stages", "explain"]


def explain(
    topology: Topology, conf: Config, workers: int, widths: Mapping[str, int] | None = None
) -> str:
    """Return the plan of a topology's waves, and its guarantee."""
    lines = [f"{topology.name}: a topology of spouts and bolts", ""]
    for spec in topology.components.values():
        lines += describe_component(topology, spec)
    large = spread(topology, workers, widths)
    lines += ["", f"a wave of up to {conf.wave_collapse_tuples:,} tuples: 1 job, 1 stage, 1 task"]
    if collapsed(topology).stages != large.stages:
        count = len(large.stages)
        lines.append(
            f"a larger one: 1 job, {count} stage{'s' if count > 1 else ''}, {max(0, count - 1)} "
            f"shuffle{'s' if count != 2 else ''}, on {workers} workers"
        )
        lines += describe_stages(large)
    lines += ["", *_guarantee(conf)]
    return "\n".join(lines)


def describe_component(topology: Topology, spec: ComponentSpec) -> list[str]:
    """Return what a component takes and emits, line by line."""
    kind = type(spec.component).__name__
    tasks = "1 task" if spec.num_tasks == 1 else f"{spec.num_tasks} tasks"
    where = ""
    if spec.is_spout:
        where = "; read on the executors" if spec.read_on_executors else "; driver"
    word = "spout" if spec.is_spout else "bolt"
    lines = [f"  {word} {spec.id} ({kind}, {tasks}{where})"]
    for given in spec.inputs:
        stream = "" if given.stream == "default" else f", stream {given.stream}"
        lines.append(f"    from {given.source}{stream}: {given.grouping} grouping")
    for stream, schema in spec.streams.items():
        takers = ", ".join(
            consumer.id for consumer, _ in topology.subscribers.get((spec.id, stream), [])
        )
        direct = " direct" if schema.direct else ""
        lines.append(
            f"    emits{direct} {stream} ({', '.join(schema.fields)})"
            f"{' to ' + takers if takers else ', which nobody takes'}"
        )
    return lines


def describe_stages(shape: WaveShape) -> list[str]:
    """Return what each stage runs, line by line."""
    lines = []
    for number, stage in enumerate(shape.stages, 1):
        shards = "1 shard" if stage.shards == 1 else f"{stage.shards} shards"
        lines.append(f"  stage {number} ({shards}): {', '.join(stage.components)}")
    return lines


def _guarantee(conf: Config) -> list[str]:
    if conf.ackers == 0:
        return ["ackers=0: not tracked; a message is acked when it is emitted (at most once)"]
    timeout = (
        f"a tree that is not complete fails after {conf.message_timeout_secs:g} to "
        f"{2 * conf.message_timeout_secs:g} s"
        if conf.enable_message_timeouts
        else "trees never time out"
    )
    return [
        "guarantee: at least once for messages with an id, not exactly-once",
        f"  {timeout}; after {conf.max_replays} replays a message becomes a dead letter",
        "  in-memory state of bolts survives lost workers, not the end of the run",
        f"  of dicts, Counters, defaultdicts and sets in it with {LARGE:,} plain values or more",
        "    a wave moves what it has changed; everything else in it moves whole with every wave",
    ]
