"""`WindowedBolt`: a bolt whose `execute` gets a window of tuples instead of one."""

from __future__ import annotations

import datetime as dt
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from waterspout._tuples import Tuple
from waterspout.errors import TopologyError
from waterspout.topology._collector import OutputCollector
from waterspout.topology._component import Bolt
from waterspout.topology._context import TopologyContext
from waterspout.topology.windowing.buffer import TupleWindow
from waterspout.topology.windowing.settings import (
    TICKS,
    Measure,
    Seconds,
    Tuples,
    WindowSettings,
    duration,
    measure,
)
from waterspout.topology.windowing.task import WindowCollector, WindowTask

__all__ = ["WindowedBolt"]


class WindowedBolt(Bolt):
    """Gets tuples by the window; emits are anchored to all of them, acks come by themselves.

    A tuple is acked when no later window can hold it: every message is in a window that was
    executed, at least once. See `docs/windows.md`.

        class Averages(WindowedBolt):
            output_fields = ("mean",)

            def execute(self, window):
                self.collector.emit([statistics.mean(t["price"] for t in window)])


        builder.set_bolt("averages", Averages().with_window(Seconds(60), Seconds(10)))
    """

    collector: WindowCollector  # type: ignore[assignment]
    """A `WindowCollector`, from `prepare` on."""

    clock: Callable[[], float] = staticmethod(time.time)
    """What time it is, in seconds since 1970. Of the wall: the bolt may move to another process
    or host, where a monotonic clock would begin anew. Replaced in tests; must be picklable."""

    _window_settings = WindowSettings()
    _window_ticks: float | None = None
    _window_task: WindowTask

    @abstractmethod
    def execute(self, window: TupleWindow[Tuple]) -> None:  # type: ignore[override]
        """Process one window. What it raises fails all tuples of the window, and nothing else.

        Called on an executor, never for an empty window. A window whose messages were replayed is
        executed again.
        """

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: OutputCollector | WindowCollector,
    ) -> None:
        self.collector = collector  # type: ignore[assignment]

    def with_window(
        self, length: Measure | dt.timedelta, slide: Measure | dt.timedelta | None = None
    ) -> Self:
        """Set the length, and after how much a window follows on another; None: every tuple."""
        given = Tuples(1) if slide is None else measure(slide, "the slide of a window")
        return self._set_window(length=measure(length, "the length of a window"), slide=given)

    def with_tumbling_window(self, length: Measure | dt.timedelta) -> Self:
        """Let each window begin where the one before ends."""
        given = measure(length, "the length of a window")
        return self._set_window(length=given, slide=given)

    def with_timestamp_field(self, field: str) -> Self:
        """Go by the time in this field: milliseconds since 1970, or a datetime with a zone."""
        if not isinstance(field, str) or not field:
            raise TopologyError(f"the timestamp field is given by its name, not as {field!r}")
        if self._window_settings.extractor is not None:
            raise TopologyError("give a timestamp field or an extractor, not both")
        return self._set_window(timestamp_field=field)

    def with_timestamp_extractor(self, extractor: Callable[[Tuple], int | dt.datetime]) -> Self:
        """Go by the time that this function finds in a tuple."""
        if not callable(extractor):
            raise TopologyError(f"a timestamp extractor is a function, not {extractor!r}")
        if self._window_settings.timestamp_field is not None:
            raise TopologyError("give a timestamp field or an extractor, not both")
        return self._set_window(extractor=extractor)

    def with_lag(self, lag: Seconds | dt.timedelta) -> Self:
        """Wait for tuples whose timestamps are out of order by up to this much; 0 if not said."""
        return self._set_window(lag=duration(lag, "the lag"))

    def with_watermark_interval(self, interval: Seconds | dt.timedelta) -> Self:
        """Look this often how far event time has come; every second if not said."""
        return self._set_window(watermark_interval=duration(interval, "the watermark interval"))

    def with_late_tuple_stream(self, stream: str) -> Self:
        """Emit late tuples there, their fields by name; else they are dropped and reported.

        The stream must be one of `streams`.
        """
        if not isinstance(stream, str) or not stream:
            raise TopologyError(f"a stream id is a non-empty string, not {stream!r}")
        return self._set_window(late_stream=stream)

    @property
    def late_count(self) -> int:
        """How many tuples of this task were late."""
        return self._window_task.late_count

    def _set_window(self, **settings: Any) -> Self:
        self._window_settings = replace(self._window_settings, **settings)
        # What was set here before may be replaced; what the user has set stays.
        if self.configuration.get(TICKS) == self._window_ticks:
            self._window_ticks = self._window_settings.tick_s
            others = {k: v for k, v in self.configuration.items() if k != TICKS}
            ticks = {} if self._window_ticks is None else {TICKS: self._window_ticks}
            self.configuration = {**others, **ticks}
        return self

    def _check_use(self, context: TopologyContext, conf: Mapping[str, Any]) -> None:
        late = self.declared_streams().get(self._window_settings.late_stream or "")
        direct = late is not None and late.direct
        self._window_settings.check(context, conf, direct=direct)

    def _prepare_task(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector
    ) -> None:
        settings = self._window_settings
        self._window_task = WindowTask(settings, conf, context, collector, self.clock())
        self.prepare(conf, context, self._window_task.collector)

    @property
    def _tuple_entry(self) -> Callable[[Tuple], None]:
        return self._take_into_window

    def _take_into_window(self, given: Tuple) -> None:
        self._window_task.receive(self.execute, self.clock(), given)
