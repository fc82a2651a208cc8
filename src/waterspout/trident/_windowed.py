"""Windows, as methods of streams and of grouped streams."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from waterspout._schema import FieldNames
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory
from waterspout.topology.windowing.settings import Seconds
from waterspout.trident.drpc.streams import refuse_to_keep
from waterspout.trident.operations.accepted import WindowArgument
from waterspout.trident.windowing.build import add_window
from waterspout.trident.windowing.config import SessionGap, WindowConfig, sliding, tumbling
from waterspout.trident.windowing.event_build import ByEvents, add_event_window

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = ["Windowed"]

_Duration = dt.timedelta | Seconds


class Windowed:
    """Aggregates over many batches: `([store,] [fields,] aggregator, out)`.

    `store` is an opaque state that keeps the windows; without one, a file of the topology's.

    Without `event_time`, a window goes by the number of tuples or by the time of batches, over each
    partition. With it, by a field of the rows: a `timestamp`, or a `bigint` of milliseconds. Then
    the window is over all rows, or over each group. A window closes when the watermark passes its
    end: the latest time so far, less `lag`. `late` is a function that is given the stream of the
    rows that come too late.
    """

    def window(
        self,
        config: WindowConfig,
        *args: WindowArgument,
        store: StateFactory | None = None,
        out: FieldNames | None = None,
        event_time: str | None = None,
        lag: _Duration | None = None,
        late: Callable[[Stream], object] | None = None,
    ) -> Stream:
        """Aggregate windows over many batches: `window(config, [fields,] aggregator, out)`."""
        if args and isinstance(args[0], StateFactory):  # as Storm orders them
            store, args = args[0], args[1:]
        return self._add_window(config, args, store, out, _by_events(event_time, lag, late))

    def tumbling_window(
        self,
        length: int | _Duration,
        *args: WindowArgument,
        store: StateFactory | None = None,
        out: FieldNames | None = None,
        event_time: str | None = None,
        lag: _Duration | None = None,
        late: Callable[[Stream], object] | None = None,
    ) -> Stream:
        """Aggregate windows that follow each other: `length` tuples each, or `length` of time."""
        return self.window(
            tumbling(length), *args, store=store, out=out, event_time=event_time, lag=lag, late=late
        )

    def sliding_window(
        self,
        length: int | _Duration,
        slide: int | _Duration,
        *args: WindowArgument,
        store: StateFactory | None = None,
        out: FieldNames | None = None,
        event_time: str | None = None,
        lag: _Duration | None = None,
        late: Callable[[Stream], object] | None = None,
    ) -> Stream:
        """Aggregate the last `length` tuples, or the last `length` of time, after each `slide`."""
        config = sliding(length, slide)
        return self.window(
            config, *args, store=store, out=out, event_time=event_time, lag=lag, late=late
        )

    def session_window(
        self,
        gap: _Duration,
        *args: WindowArgument,
        store: StateFactory | None = None,
        out: FieldNames | None = None,
        event_time: str | None = None,
        lag: _Duration | None = None,
        late: Callable[[Stream], object] | None = None,
    ) -> Stream:
        """Aggregate rows that follow one another by less than `gap`, of all rows or each group."""
        if event_time is None:
            raise TopologyError(
                "session_window goes by event time: say which field it is, with event_time=..."
            )
        if args and isinstance(args[0], StateFactory):
            store, args = args[0], args[1:]
        config = SessionGap.of(gap)
        return self._add_window(config, args, store, out, _by_events(event_time, lag, late))

    def _add_window(
        self,
        config: WindowConfig | SessionGap,
        args: Sequence[Any],
        store: StateFactory | None,
        out: FieldNames | None,
        events: ByEvents | None,
    ) -> Stream:
        keys = getattr(self, "group_fields", None)
        stream: Any = self
        refuse_to_keep(stream.to_stream().node, "a window, which spans batches,")
        if events is not None:
            return add_event_window(
                stream.to_stream(), keys or (), config, events, store, args, out
            )
        if keys is not None:
            raise TopologyError(
                "a window over groups goes by event time: say which field it is, with "
                "event_time=...; without one, windows are over partitions, which partition_by() "
                "and parallelism_hint() choose"
            )
        assert not isinstance(config, SessionGap)
        return add_window(stream, config, store, args, out)


def _by_events(
    field: str | None, lag: _Duration | None, late: Callable[[Stream], object] | None
) -> ByEvents | None:
    if field is not None:
        return ByEvents(field, lag, late)
    if lag is not None or late is not None:
        raise TopologyError(
            "a window by count or by the time of batches has no lag and no late rows; with "
            "event_time=... it goes by a field of the rows"
        )
    return None
