"""Windows of event time in a plan: partial results in the JVM, merged by an update of a state."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waterspout._schema import FieldNames, Schema
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory
from waterspout.topology.windowing.settings import Seconds
from waterspout.trident._aggregating import arguments, make_aggregation, value_schema
from waterspout.trident.operations.aggregators import Count, Max
from waterspout.trident.operations.coercion import is_expression
from waterspout.trident.operations.contracts import CombinerAggregator, describe
from waterspout.trident.operations.functions import PaneStart
from waterspout.trident.plan.nodes import (
    Aggregation,
    LateRows,
    NewValues,
    Scope,
    Sessions,
    UpdateWith,
)
from waterspout.trident.plan.plan import Shape
from waterspout.trident.windowing.config import SessionGap, WindowConfig
from waterspout.trident.windowing.event_updater import (
    LATEST,
    ROWS,
    WINDOW_END,
    WINDOW_START,
    EventUpdater,
    EventWindows,
)
from waterspout.trident.windowing.merging import Merging
from waterspout.trident.windowing.pane_updater import PaneUpdater
from waterspout.trident.windowing.panes import EventTime, Panes
from waterspout.trident.windowing.partials import KEYS, START, VALUES
from waterspout.trident.windowing.session_updater import SessionUpdater
from waterspout.trident.windowing.store import OwnStore, require_opaque

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = ["ByEvents", "add_event_window"]


@dataclass(frozen=True, slots=True)
class ByEvents:
    """What a call says of event time: the field, the lag, and who takes the rows that are late."""

    field: str
    lag: dt.timedelta | Seconds | None = None
    late: Callable[[Stream], object] | None = None


def add_event_window(
    stream: Stream,
    keys: tuple[str, ...],
    config: WindowConfig | SessionGap,
    by: ByEvents,
    store: StateFactory | None,
    args: Sequence[Any],
    out: FieldNames | None,
) -> Stream:
    """Add windows of event time; return the stream of their results.

    Each batch is aggregated by key and pane, where the batch is processed. What comes of that, few
    rows, goes into a state; the results of the windows that close are its new values.
    """
    aggregation, where = _aggregation(stream, args, out)
    time = _event_time(stream, by, where)
    windows = EventWindows(
        time=time,
        keys=stream.schema.select(keys, where=where),
        out=aggregation.out,
        merging=Merging(aggregation.aggregator, value_schema(aggregation), where),
        wants_late=by.late is not None,
        where=where,
    )
    _refuse_taken_names(windows)
    if isinstance(config, SessionGap):
        gap = time.units(config.gap.millis)
        found = stream.topology.add(
            Sessions, f"sessions of {time.field}", _with_start(stream.schema), [stream.node],
            keys=keys, event_time=time.field, gap=gap,
        )  # fmt: skip
        partials = _partials(found, (*keys, START), aggregation, time)
        return _merged(stream, partials, windows, SessionUpdater(windows, gap), by, store)
    if not config.by_time:
        raise TopologyError(
            f"{where}: windows of event time are measured in time: give the length as a timedelta, "
            f"not {config!r}"
        )
    panes = Panes(time.units(config.span), time.units(config.step))
    cut = stream.each(time.field, PaneStart(panes.size), START).name(f"pane of {time.field}")
    partials = _partials(cut, (*keys, START), aggregation, time)
    return _merged(stream, partials, windows, PaneUpdater(windows, panes), by, store)


def _aggregation(
    stream: Stream, args: Sequence[Any], out: FieldNames | None
) -> tuple[Aggregation, str]:
    _, aggregator, _ = arguments("window", args, out)
    where = f"window({describe(aggregator)})"
    if is_expression(aggregator) or not isinstance(aggregator, CombinerAggregator):
        raise TopologyError(
            f"{where}: windows of event time keep partial results, and need a CombinerAggregator: "
            "a built-in one such as Count() or Sum(), Columns(...), or one of your own, made with "
            "combiner(...)"
        )
    aggregation = make_aggregation(stream.schema, "window", args, out)
    return aggregation, where


def _event_time(stream: Stream, by: ByEvents, where: str) -> EventTime:
    if not isinstance(by.field, str):
        raise TopologyError(f"{where}: event_time is the name of a field, not {by.field!r}")
    ((field, kind),) = stream.schema.select([by.field], where=f"event_time of {where}")
    if by.late is not None and not callable(by.late):
        raise TopologyError(
            f"{where}: late is a function of the stream of rows that come too late, for example "
            f"late=lambda rows: rows.partition_persist(...), not {by.late!r}"
        )
    return EventTime.of(field, kind, by.lag, where)


def _with_start(schema: Schema) -> Schema:
    return Schema((*schema.fields, (START, "bigint")))


def _refuse_taken_names(windows: EventWindows) -> None:
    for name in (*windows.keys.names, *windows.out.names):
        if name.lower() in (WINDOW_START, WINDOW_END):
            raise TopologyError(
                f"{windows.where}: {name!r} is where a window begins or ends; give the field "
                "another name"
            )


def _partials(
    stream: Stream, group: tuple[str, ...], aggregation: Aggregation, time: EventTime
) -> Stream:
    """Add the aggregation of each batch, with the latest time and the number of rows."""
    latest = make_aggregation(stream.schema, "window", [time.field, Max()], LATEST)
    rows = make_aggregation(stream.schema, "window", [(), Count()], ROWS)
    made = stream._aggregate(
        "window", group, [aggregation, latest, rows], Scope.BATCH, finished=False
    )
    return made.name(f"partial results of window({describe(aggregation.aggregator)})")


def _merged(
    stream: Stream,
    partials: Stream,
    windows: EventWindows,
    updater: EventUpdater,
    by: ByEvents,
    store: StateFactory | None,
) -> Stream:
    """Add the update of the windows' state, and give the late rows to whoever wants them."""
    factory: StateFactory
    topology = stream.topology
    if store is None:
        factory = OwnStore(topology.next_state(), KEYS, VALUES)
    else:
        factory = require_opaque(store, windows.where, "its partial results").bind(KEYS, VALUES)
    updating = UpdateWith(partials.fields, updater)
    made = partials.update(factory, Shape.OWN, KEYS, VALUES, windows.emitted, updating)
    assert made.node is not None
    topology.rename(made.node, f"{windows.where} in {made.name}")
    name = f"results of {windows.where}"
    if by.late is None:
        return made.new_values_stream().name(name)
    results = topology.add(NewValues, name, windows.results, [made.node], late=False)
    spans = Schema((*windows.keys.fields, *_times(windows).fields))
    late = topology.add(NewValues, f"late in {windows.where}", spans, [made.node], late=True)
    rows = topology.add(
        LateRows, f"late rows of {windows.where}", stream.schema, [stream.node, late.node],
        keys=windows.keys.names, event_time=windows.time.field,
    )  # fmt: skip
    by.late(rows)
    return results


def _times(windows: EventWindows) -> Schema:
    return windows.results.select((WINDOW_START, WINDOW_END), where=windows.where)
