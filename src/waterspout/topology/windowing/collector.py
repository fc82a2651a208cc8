"""`WindowCollector`: the way out of a windowed bolt; every emit is anchored to the whole window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from waterspout.errors import AckError
from waterspout.topology.collector import OutputCollector
from waterspout.topology.ports import UNANCHORED
from waterspout.tuples import Tuple

__all__ = ["WindowCollector"]


class WindowCollector:
    """What `self.collector` is in a windowed bolt."""

    def __init__(self, out: OutputCollector) -> None:
        self._out = out
        self._tuples: Sequence[Tuple] = ()
        self._anchor: int | None = UNANCHORED

    def emit(self, values: Sequence[Any], stream: str = "default") -> tuple[int, ...]:
        """Emit a tuple, anchored to all tuples of the window; return its task ids."""
        outlet = self._out.port.outlet(stream)
        fitting = outlet.fit(values)
        targets = outlet.route(fitting)
        outlet.send(targets, fitting, self._anchored())
        return targets

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
