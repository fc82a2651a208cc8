"""What a window is measured in, what was said of a windowed bolt, and whether it fits together."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from waterspout._tuples import Tuple
from waterspout.errors import TopologyError
from waterspout.topology._context import TopologyContext

__all__ = ["TICKS", "Measure", "Seconds", "Tuples", "WindowSettings", "duration", "measure"]

TICKS = "topology.tick.tuple.freq.secs"

# How late a window by time may be executed while no tuple comes.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Tuples:
    """A number of tuples."""

    count: int

    def __post_init__(self) -> None:
        whole = isinstance(self.count, int) and not isinstance(self.count, bool)
        if not whole or self.count < 1:
            raise TopologyError(f"a number of tuples is a positive integer, not {self.count!r}")


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time; counted in whole milliseconds.

    >>> Seconds(1.5).millis
    1500
    """

    seconds: float

    def __post_init__(self) -> None:
        given = self.seconds
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not math.isfinite(given) or self.millis < 1:
            raise TopologyError(f"a duration is at least a millisecond, not {given!r} seconds")

    @property
    def millis(self) -> int:
        """The same in milliseconds."""
        return round(self.seconds * 1000)


Measure = Tuples | Seconds

_BETWEEN_LOOKS = Seconds(1)


def measure(given: Any, what: str) -> Measure:
    """Return what a window is measured by; a bare number is refused, as it could mean either."""
    if isinstance(given, Tuples):
        return given
    return duration(given, what, "Tuples(30), Seconds(5) or a timedelta")


def duration(given: Any, what: str, expected: str = "Seconds(5) or a timedelta") -> Seconds:
    """Return a duration; the texts are for the error."""
    if isinstance(given, dt.timedelta):
        return Seconds(given.total_seconds())
    if not isinstance(given, Seconds):
        raise TopologyError(f"{what} is given as {expected}, not as {given!r}")
    return given


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """The window of a bolt; None: not said."""

    length: Measure | None = None
    slide: Measure | None = None
    timestamp_field: str | None = None
    extractor: Callable[[Tuple], Any] | None = None
    lag: Seconds | None = None
    watermark_interval: Seconds | None = None
    late_stream: str | None = None

    @property
    def by_event_time(self) -> bool:
        """Whether tuples bring their timestamps."""
        return self.timestamp_field is not None or self.extractor is not None

    @property
    def between_looks(self) -> Seconds:
        """The time between two looks at the watermark."""
        return self.watermark_interval or _BETWEEN_LOOKS

    @property
    def tick_s(self) -> float | None:
        """How often the bolt must be told that time passes; None: time does not matter."""
        if self.by_event_time:
            return self.between_looks.seconds
        paced_by = self.slide if isinstance(self.slide, Seconds) else self.length
        return min(_LOOK_S, paced_by.seconds) if isinstance(paced_by, Seconds) else None

    def check(self, context: TopologyContext, conf: Mapping[str, Any], *, direct: bool) -> None:
        """Raise what does not fit; `direct`: the stream for late tuples is a direct one."""
        where = f"bolt {context.this_component_id!r}"
        if self.length is None:
            raise TopologyError(
                f"{where} has no window: call with_window or with_tumbling_window on it"
            )
        self._check_timestamps(where, context)
        if self.late_stream is not None:
            if direct:
                raise TopologyError(
                    f"{where}: the stream for late tuples, {self.late_stream!r}, must not be direct"
                )
            self._check_late_stream(where, self.late_stream, context)
        if self.tick_s is not None and conf.get(TICKS) is None:
            raise TopologyError(
                f"{where} needs ticks: its configuration was replaced after its window was set; "
                f"add {TICKS!r} to it"
            )
        self._check_timeout(where, conf)
        self._check_pending(where, conf)

    def _check_timestamps(self, where: str, context: TopologyContext) -> None:
        if not self.by_event_time:
            idle = {
                "with_lag": self.lag,
                "with_watermark_interval": self.watermark_interval,
                "with_late_tuple_stream": self.late_stream,
            }
            for call, value in idle.items():
                if value is not None:
                    raise TopologyError(
                        f"{where}: {call} means nothing without timestamps; call "
                        "with_timestamp_field or with_timestamp_extractor too"
                    )
        if self.timestamp_field is not None:
            self._check_fields(where, "timestamp", [self.timestamp_field], context)

    def _check_late_stream(self, where: str, stream: str, context: TopologyContext) -> None:
        declared = context.streams[context.this_component_id]
        if stream not in declared:
            known = ", ".join(map(repr, declared)) or "no stream at all"
            raise TopologyError(
                f"{where}: the stream for late tuples, {stream!r}, is not declared; it declares "
                f"{known}"
            )
        self._check_fields(where, "late", declared[stream], context)

    def _check_fields(self, where: str, what: str, names: Any, context: TopologyContext) -> None:
        for source, stream in context.this_sources:
            known = context.streams[source][stream]
            for name in names:
                if name not in known:
                    raise TopologyError(
                        f"{where}: there is no {what} field {name!r} in stream {stream!r} of "
                        f"{source!r}, which has {', '.join(known)}"
                    )

    def _check_timeout(self, where: str, conf: Mapping[str, Any]) -> None:
        """Refuse a window that outlasts the trees of its tuples, as Storm does."""
        timeout = conf.get("topology.message.timeout.secs")
        times = [m.seconds for m in (self.length, self.slide) if isinstance(m, Seconds)]
        if timeout is None or not times or not _is_tracked(conf):
            return
        if not conf.get("topology.enable.message.timeouts", True):
            return
        if sum(times) > timeout:
            raise TopologyError(
                f"{where}: length and slide of its window are {sum(times):g} s together, but a "
                f"message times out after {timeout:g} s; raise message_timeout_secs"
            )

    def _check_pending(self, where: str, conf: Mapping[str, Any]) -> None:
        """Refuse a window that can never fill, as Storm does (which compares length plus slide)."""
        pending = conf.get("topology.max.spout.pending")
        if not pending or not isinstance(self.length, Tuples) or not _is_tracked(conf):
            return
        if self.length.count > pending:
            raise TopologyError(
                f"{where}: its window holds {self.length.count} tuples, but a spout stops at "
                f"{pending} messages that are not acked; raise max_spout_pending"
            )


def _is_tracked(conf: Mapping[str, Any]) -> bool:
    return bool(conf.get("topology.acker.executors", 1))
