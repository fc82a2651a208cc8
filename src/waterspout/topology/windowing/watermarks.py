"""`Watermark`: how far event time has come, judged by the timestamps seen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

__all__ = ["Watermark"]


class Watermark:
    """The least of the latest timestamps of all input streams, less the lag. No clock in here.

    >>> mark = Watermark(["clicks", "views"], lag=10)
    >>> mark.note("clicks", 100)
    >>> mark.value is None
    True
    >>> mark.note("views", 70)
    >>> mark.value
    60
    """

    def __init__(self, streams: Iterable[Hashable], lag: int) -> None:
        self._latest: dict[Hashable, int | None] = dict.fromkeys(streams)
        self._lag = lag

    def note(self, stream: Hashable, ts: int) -> None:
        """Take note of a timestamp; one that is older than others changes nothing."""
        latest = self._latest.get(stream)
        if latest is None or ts > latest:
            self._latest[stream] = ts

    @property
    def value(self) -> int | None:
        """Where event time stands; None until something has come on every stream."""
        least: int | None = None
        for latest in self._latest.values():
            if latest is None:
                return None
            least = latest if least is None else min(least, latest)
        return None if least is None else least - self._lag
