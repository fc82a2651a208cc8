"""`LogSpout`: a spout over a partitioned log that is read on the executors.

The driver only hands out ranges of offsets; a message costs it a few bytes, not a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from waterspout.topology.component import Component
from waterspout.topology.context import TopologyContext

__all__ = ["LogSpout"]


class LogSpout(Component, ABC):
    """Messages by partition and offset; one stream, `output_fields`.

    Every message is tracked by itself: one that failed is read and emitted again alone. What is
    committed for a partition is the offset up to which everything is acked: a run that starts
    again goes on from there. A partition is an int or a string.
    """

    read_on_executors = True

    def open(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Connect to the source. Called in the driver, before anything else there."""

    @abstractmethod
    def partitions(self) -> Sequence[int | str]:
        """Return the partitions there are now. Called in the driver, often."""

    @abstractmethod
    def end(self, partition: int | str) -> int:
        """Return the offset after the last message. Called in the driver, often."""

    def begin(self, partition: int | str) -> int:
        """Return the offset to start at where nothing is committed yet. Called in the driver."""
        return 0

    def advance(self, partition: int | str, start: int, messages: int) -> int:
        """Return the offset after about so many messages. Called in the driver, for each wave.

        To be overridden where offsets do not count messages (byte positions, say).
        """
        return start + messages

    @abstractmethod
    def read(
        self, partition: int | str, start: int, end: int
    ) -> Iterable[tuple[int, Sequence[Any]]]:
        """Yield the offset and the values of each message from `start` to before `end`.

        Called on an executor, on a copy that was not opened, and again for the same range if a
        task is retried: it must give the same messages. Offsets may have gaps.
        """

    def committed(self, partition: int | str, offset: int) -> None:
        """Everything before `offset` is done and will not be read again. Called in the driver."""

    def close(self) -> None:
        """Give up the connections; called when the run ends in an orderly way."""
