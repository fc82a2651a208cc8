"""`WindowTask`: one task of a windowed bolt; tuples and ticks in, windows, acks and fails out.

It is pickled with the bolt between waves, so it keeps no clock of its own.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from waterspout._safe_repr import described, shown
from waterspout._tuples import Tuple
from waterspout.errors import AckError, FailedException, ResultError, TopologyError
from waterspout.topology._collector import OutputCollector
from waterspout.topology._context import TopologyContext
from waterspout.topology._ports import UNANCHORED
from waterspout.topology.windowing.buffer import TupleWindow, WindowBuffer
from waterspout.topology.windowing.settings import Seconds, WindowSettings

__all__ = ["Watermark", "WindowCollector", "WindowTask"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLI = dt.timedelta(milliseconds=1)

# How long event time waits for the messages of a failed window, as a share of the timeout.
_WAIT_SHARE = 1 / 3


class Watermark:
    """How far event time has come. No clock in here.

    That is the least of the latest timestamps of all input streams, less the lag.

    >>> mark = Watermark(["clicks", "views"], lag=10)
    >>> mark.note("clicks", 100)
    >>> mark.value is None
    True
    >>> mark.note("views", 70)
    >>> mark.value
    60
    """

    def __init__(self, streams: Iterable[Hashable], lag: int) -> None:
        self._awaited = set(streams)
        self._latest: dict[Hashable, int] = {}
        self._lag = lag

    def note(self, stream: Hashable, ts: int) -> None:
        """Take note of a timestamp; one that is older than others changes nothing."""
        self._awaited.discard(stream)
        self._latest[stream] = max(ts, self._latest.get(stream, ts))

    @property
    def value(self) -> int | None:
        """Where event time stands; None until something has come on every stream."""
        if self._awaited or not self._latest:
            return None
        return min(self._latest.values()) - self._lag


class WindowCollector:
    """A windowed bolt's way out: every emit is anchored to the whole window."""

    def __init__(self, out: OutputCollector) -> None:
        self._out = out
        self._tuples: Sequence[Tuple] = ()
        self._anchor: int | None = UNANCHORED

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple, anchored to all tuples of the window; return its task ids."""
        outlet = self._out.port.outlet(stream)
        return outlet.put(outlet.fit(values), self._anchored())

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default") -> None:
        """Emit a tuple of a direct stream to one task, anchored to all tuples of the window."""
        self._out.port.emit_direct(task, values, stream, self._anchored())

    def reset_timeout(self, tuple: Tuple) -> None:
        """Let the time of this tuple's messages begin anew when the wave is over."""
        self._out.reset_timeout(tuple)

    def report_error(self, error: BaseException) -> None:
        """Show an error in the log and in `Run.errors` without failing anything."""
        self._out.report_error(error)

    def ack(self, tuple: Tuple) -> NoReturn:
        """Refuse: a windowed bolt does not ack by itself."""
        raise AckError("a tuple is acked by itself when no later window can hold it")

    def fail(self, tuple: Tuple) -> NoReturn:
        """Refuse: a windowed bolt fails a window, not a tuple."""
        raise AckError("to fail the tuples of a window, raise FailedException in execute")

    def hold(self, tuples: Sequence[Tuple]) -> None:
        """Anchor what follows to these tuples; to none: the window is over."""
        self._tuples = tuples
        self._anchor = None if tuples else UNANCHORED

    def _anchored(self) -> int:
        # Once for a window, not for each emit: a window may be large.
        if self._anchor is None:
            self._anchor = self._out.port.anchor(self._tuples)
        return self._anchor


@dataclass(slots=True)
class _Reopened:
    """A window that failed and waits for its messages to come again."""

    first: int
    last: int
    missing: int
    until: int


class WindowTask:
    """Puts tuples into windows, executes those that are due, acks what is out of all windows."""

    def __init__(
        self,
        settings: WindowSettings,
        conf: Mapping[str, Any],
        context: TopologyContext,
        out: OutputCollector,
        now: float,
    ) -> None:
        if settings.length is None or settings.slide is None:
            raise TopologyError(f"bolt {context.this_component_id!r} has no window")
        self._settings = settings
        self._out = out
        self.collector = WindowCollector(out)
        self._buffer: WindowBuffer[Tuple] = WindowBuffer(settings.length, settings.slide)
        self._slides_by_time = isinstance(settings.slide, Seconds)
        self._watermark = Watermark(
            context.this_sources, 0 if settings.lag is None else settings.lag.millis
        )
        self._reached: int | None = None
        self._now = self._looked_at = _millis(now)
        late = settings.late_stream
        declared = context.streams.get(context.this_component_id, {})
        self._late_fields = () if late is None else tuple(declared[late])
        self._crash = conf.get("waterspout.bolt.errors") == "crash"
        self._max_replays = int(conf.get("waterspout.max.replays", 0))
        timeout = float(conf.get("topology.message.timeout.secs") or 30)
        self._patience = round(timeout * _WAIT_SHARE * 1000)
        self._reopened: _Reopened | None = None
        self._failing: tuple[int, int] = (0, 0)
        self.late_count = 0

    def receive(self, execute: Callable[[Any], None], now: float, given: Tuple) -> None:
        """Take a tuple or a tick, and execute the windows that are due.

        `now` may jump back, when the task has moved to another host: time then stands still.
        """
        self._now = max(self._now, _millis(now))
        if given.is_tick:
            self._out.ack(given)
            if self._settings.by_event_time:
                self._look(execute)
            else:
                self._run(execute, self._now)
        elif self._settings.by_event_time:
            self._receive_dated(given)
            if self._now - self._looked_at >= self._settings.between_looks.millis:
                self._look(execute)
        elif self._slides_by_time:
            # Windows that ended before now; one that ends just now may still get this tuple.
            self._run(execute, self._now - 1)
            end = self._buffer.end
            if end is not None and end >= self._now:
                self._now = end + 1
            self._buffer.add(given, self._now)
        else:
            self._buffer.add(given, self._now)
            self._run(execute, self._now)

    def _receive_dated(self, given: Tuple) -> None:
        ts = self._timestamp(given)
        self._watermark.note((given.source_component, given.source_stream), ts)
        if self._is_late(ts):
            self._put_aside(given, ts)
            return
        self._buffer.add(given, ts)
        waiting = self._reopened
        if waiting is not None and waiting.first <= ts <= waiting.last:
            waiting.missing -= 1

    def _is_late(self, ts: int) -> bool:
        bound = self._reached
        if self._reopened is not None:
            bound = self._reopened.first
        return (bound is not None and ts < bound) or self._buffer.is_late(ts)

    def _put_aside(self, given: Tuple, ts: int) -> None:
        stream = self._settings.late_stream
        if stream is not None:
            self._out.emit(given.select(*self._late_fields), given, stream)
        else:
            self._out.report_error(
                RuntimeWarning(
                    f"a late tuple was dropped: {shown(given)}, timestamp {ts}, watermark "
                    f"{self._reached}; with_late_tuple_stream would keep it"
                )
            )
        self.late_count += 1
        self._out.ack(given)

    def _timestamp(self, given: Tuple) -> int:
        field, extractor = self._settings.timestamp_field, self._settings.extractor
        found = given[field] if field is not None else extractor(given)  # type: ignore[misc]
        if isinstance(found, dt.datetime) and found.tzinfo is not None:
            return (found - _EPOCH) // _MILLI
        try:
            if not isinstance(found, bool):
                return operator.index(found)
        except TypeError:
            pass
        raise ResultError(
            f"a timestamp is an integer, in milliseconds since 1970, or a datetime with a time "
            f"zone, not {shown(found)}"
        )

    def _look(self, execute: Callable[[Any], None]) -> None:
        """See how far event time has come, and execute the windows up to there."""
        self._looked_at = self._now
        waiting = self._reopened
        if waiting is not None:
            if waiting.missing > 0 and self._now < waiting.until:
                return
            self._reopened = None
        mark = self._watermark.value
        if mark is None:
            return
        self._reached = mark if self._reached is None else max(mark, self._reached)
        self._run(execute, self._reached)

    def _run(self, execute: Callable[[Any], None], upto: int) -> None:
        while (window := self._buffer.next_window(upto)) is not None:
            error = self._execute(execute, window)
            if error is None:
                self._ack(self._buffer.expire(window.end_timestamp))
                continue
            self._give_up(window, error)
            if self._reopened is not None:
                return
        self._ack(self._buffer.expire(upto))

    def _execute(
        self, execute: Callable[[Any], None], window: TupleWindow[Tuple]
    ) -> Exception | None:
        """Hand a window to the user; return what went wrong."""
        self.collector.hold(window.tuples)
        try:
            execute(window)
        except FailedException as error:
            return error
        except Exception as error:
            if self._crash:
                raise
            self._out.report_error(error)
            return error
        finally:
            self.collector.hold(())
        return None

    def _give_up(self, window: TupleWindow[Tuple], error: Exception) -> None:
        """Fail the tuples of a window, and forget them: their messages will come again."""
        end, failures = self._failing
        failures = failures + 1 if end == window.end_timestamp else 1
        self._failing = (window.end_timestamp, failures)
        tracked = [t for t in window.tuples if self._out.port.roots_of(t)]
        # By event time the replays would be late. Unless they will be dead letters, wait for them.
        wait = self._settings.by_event_time and bool(tracked) and failures <= self._max_replays
        if wait:
            first = self._timestamp(window.tuples[0])
            self._reopened = _Reopened(
                first, window.end_timestamp, len(tracked), self._now + self._patience
            )
        reason = described(error)
        for given in self._buffer.discard(reopen=wait):
            self._out.port.fail(given, reason)

    def _ack(self, tuples: Iterable[Tuple]) -> None:
        for given in tuples:
            self._out.ack(given)


def _millis(seconds: float) -> int:
    return int(seconds * 1000)
