"""Windows in a plan: how one is added, and which of them go by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waterspout._schema import FieldNames
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory
from waterspout.trident._aggregating import arguments, make_aggregation
from waterspout.trident.operations.aggregators import Count
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.contracts import describe
from waterspout.trident.plan.nodes import Update, UpdateWith
from waterspout.trident.plan.plan import Plan, Shape
from waterspout.trident.windowing.buffer import KEYS, VALUES
from waterspout.trident.windowing.config import WindowConfig
from waterspout.trident.windowing.store import OwnStore, require_opaque
from waterspout.trident.windowing.updater import WindowUpdater

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = ["add_window", "windows_by_time"]


def add_window(
    stream: Stream,
    config: WindowConfig,
    store: StateFactory | None,
    args: Sequence[Any],
    out: FieldNames | None,
) -> Stream:
    """Add windows to a stream; return the stream of their results.

    They are an update of a state, in the commit phase, and the results are its new values.
    """
    fields, aggregator, out = arguments("window", args, out)
    where = f"window({describe(aggregator)})"
    if not isinstance(config, WindowConfig):
        raise TopologyError(
            f"{where} needs a window, such as TumblingCountWindow.of(100) or "
            f"SlidingDurationWindow.of(length, slide), not {config!r}"
        )
    if is_expression(aggregator):
        raise TopologyError(
            f"{where}: a Spark expression aggregates a batch; a window needs an Aggregator, "
            "ReducerAggregator or CombinerAggregator"
        )
    if fields is None and type(aggregator) is Count:
        fields = ()  # what it does not look at need not be kept
    aggregation = make_aggregation(stream.schema, "window", [fields, aggregator], out)
    updater = WindowUpdater(config, aggregation.inputs, aggregation.aggregator)
    factory: StateFactory
    if store is None:
        factory = OwnStore(stream.topology.next_state())
    else:
        factory = require_opaque(store, where, "its tuples").bind(KEYS, VALUES)
    updating = UpdateWith(
        aggregation.inputs.names, updater, every_batch=config.by_time, by_partition=True
    )
    # A table without columns has no rows: keep one column.
    inputs = stream.project(aggregation.inputs.names or stream.fields[:1])
    made = inputs.update(factory, Shape.OWN, KEYS, VALUES, aggregation.out, updating)
    results = made.new_values_stream().name(f"results of {where}")
    stream.topology.rename(results.node.parents[0], f"{where} in {made.name}")
    return results


def windows_by_time(plan: Plan) -> list[tuple[int, int]] | None:
    """Return length and slide, in milliseconds, of the windows of a plan that go by time.

    They end whether tuples come or not. None if nothing in the plan goes by the time of batches.
    """
    updates = [node.updating for node in plan.nodes if isinstance(node, Update)]
    timed = [getattr(updating.operation, "ends", None) for updating in updates]
    found = [ends for ends in timed if ends is not None]
    return [window for ends in found for window in ends] if found else None
