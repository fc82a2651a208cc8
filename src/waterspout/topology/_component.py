"""Spouts and bolts: the contracts that users implement.

A component declares what it emits, as `output_fields` (the default stream) or as `streams`, on
the class or on the instance:

    class Split(BasicBolt):
        output_fields = ("word",)

    class Route(Bolt):
        streams = {"default": ("order",), "rejected": ("order", "why"), "to": Direct("order",)}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from waterspout._backoff import Backoff
from waterspout._tuples import Fields, Tuple
from waterspout.errors import TopologyError
from waterspout.topology._collector import BasicCollector, OutputCollector, SpoutCollector
from waterspout.topology._context import TopologyContext

__all__ = [
    "DEFAULT_STREAM",
    "BasicBolt",
    "Bolt",
    "Component",
    "Direct",
    "LogSpout",
    "Spout",
    "StreamSchema",
]

DEFAULT_STREAM = "default"


class Direct(Fields):
    """The fields of a direct stream: its emitter names the task that gets each tuple."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """What is emitted on one stream."""

    fields: Fields
    direct: bool = False


class Component:
    """What spouts and bolts have in common: the streams they emit, and their configuration."""

    output_fields: str | Sequence[str] | None = None
    """The fields of the default stream; None: see `streams`."""

    streams: Mapping[str, Sequence[str]] | None = None
    """The fields of each stream, by its id; `Direct(...)` for a direct one."""

    configuration: Mapping[str, Any] = {}
    """Options of this component alone, by Storm's keys or your own."""

    read_on_executors: ClassVar[bool] = False
    """Whether this is a spout whose tuples are emitted on the executors."""

    _takes_returns: ClassVar[bool] = False
    """Whether this is a spout that bolts of the topology send something back to."""

    def declared_streams(self) -> dict[str, StreamSchema]:
        """Return the schema of each output stream; an error says what does not fit."""
        for method in ("declareOutputFields", "declare_output_fields"):
            if callable(getattr(self, method, None)):
                raise TopologyError(
                    f"{type(self).__name__} declares its fields in {method}, which nobody calls; "
                    'write output_fields = ("word",), or streams = {"id": ("word",)}, in the class'
                )
        declared: dict[str, StreamSchema] = {}
        if self.output_fields is not None:
            declared[DEFAULT_STREAM] = _schema(DEFAULT_STREAM, self.output_fields)
        for stream, fields in (self.streams or {}).items():
            if not isinstance(stream, str) or not stream:
                raise TopologyError(f"a stream id is a non-empty string, not {stream!r}")
            if stream.startswith("__"):
                raise TopologyError(f"{stream!r} is not a valid stream id: '__' is reserved")
            if stream in declared:
                raise TopologyError(
                    f"stream {stream!r} is declared both by output_fields and by streams"
                )
            declared[stream] = _schema(stream, fields)
        return declared

    def _check_use(self, context: TopologyContext, conf: Mapping[str, Any]) -> None:
        """Refuse inputs or options that this kind of component cannot work with.

        Called in the driver: when the topology is built, with the component's own options, and
        when a run starts, with all of them.
        """


def _schema(stream: str, fields: str | Sequence[str]) -> StreamSchema:
    if isinstance(fields, str):
        fields = (fields,)
    if not isinstance(fields, list | tuple):
        raise TopologyError(
            f"stream {stream!r}: its fields are a list of names, in order, not {fields!r}"
        )
    try:
        return StreamSchema(Fields(*fields), isinstance(fields, Direct))
    except TopologyError as error:
        raise TopologyError(f"stream {stream!r}: {error}") from None


class Spout(Component, ABC):
    """A source of messages. Every method is called in the driver, by one thread.

    There is one object for each task: the first task is the object given, others are copies.
    """

    _is_final: ClassVar[bool] = False
    """Whether a message that fails is over: nobody emits it again, and it is no dead letter."""

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutCollector
    ) -> None:
        """Connect to the source. Called once, before anything else; again if the task restarts."""
        self.collector = collector

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit the next message, or return at once if there is none; must not wait."""

    def is_drained(self) -> bool:
        """Whether no more is to be expected for now; asked when `next_tuple` had nothing.

        For sources that give a message back only after a while, or whose `next_tuple` may pass over
        messages without emitting one: `process_all_available` then waits for what is behind.
        """
        return True

    def lag(self) -> int | None:
        """Return how many messages wait at the source; None if that cannot be told.

        For who watches a run. The first task is asked, about once a second: must be quick.
        """
        return None

    def ack(self, msg_id: Any) -> None:
        """The tree of this message is complete. Called once for an emission, or `fail` is."""

    def fail(self, msg_id: Any) -> None:
        """The tree failed or timed out: emit the message again, if it is to be processed."""

    def _fail_because(self, msg_id: Any, component: str, why: str) -> None:
        """What is called in place of `fail`, for a spout that tells somebody."""
        self.fail(msg_id)

    def _returned(self, values: Sequence[Any]) -> None:
        """A bolt has sent this back to the task. Called when its wave is over, before acks."""

    def activate(self) -> None:
        """`next_tuple` will be called again. Not called at the start."""

    def deactivate(self) -> None:
        """`next_tuple` will not be called for a while; `ack` and `fail` still are."""

    def close(self) -> None:
        """Give up the connections; called when the run ends in an orderly way."""


class LogSpout(Component, ABC):
    """A spout over a partitioned log that is read on the executors; one stream, `output_fields`.

    The driver only hands out ranges of offsets: a message costs it a few bytes, not a call.

    Every message is tracked by itself: one that failed is read and emitted again alone. What is
    committed for a partition is the offset up to which everything is acked: a run that starts
    again goes on from there. A partition is an int or a string.
    """

    read_on_executors = True

    retry_backoff: Backoff | None = None
    """How long a message that failed waits before it is read again; None: not at all."""

    def open(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Connect to the source. Called in the driver, before anything else there."""

    def resume(self, positions: Mapping[int | str, int]) -> None:
        """Learn where the run goes on, by partition; nothing, if it is the first one.

        Called in the driver, after `open`. To raise DataLossError here ends the run.
        """

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


class Bolt(Component, ABC):
    """Processes tuples; must `ack` or `fail` each one it got, at once or in a later wave.

    There is one object for each task. It lives as long as the run: between waves its attributes
    are pickled and travel on, so that a lost worker loses nothing. What cannot be pickled (a
    connection) is named in `transient`, and made by `prepare`, which runs again where it is
    missing; the other attributes are then put back over what `prepare` has set.
    """

    transient: ClassVar[Sequence[str]] = ()

    def prepare(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector
    ) -> None:
        """Get ready; called on an executor, before the first tuple."""
        self.collector = collector

    def _prepare_task(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector
    ) -> None:
        """What is called to prepare it; a kind of bolt may put something before `prepare`."""
        self.prepare(conf, context, collector)

    @property
    def _tuple_entry(self) -> Callable[[Tuple], None]:
        """What is called for each tuple; a kind of bolt may put something before `execute`."""
        return self.execute

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple. What it raises fails this tuple, not the run.

        After a lost worker the same tuples are executed again from the state before the wave.
        """

    def cleanup(self) -> None:
        """Give up what `prepare` took; called when the run ends in an orderly way."""


class BasicBolt(Component, ABC):
    """A bolt that emits anchored to its input and has it acked when `execute` returns.

    Raise `FailedException` to have the input failed and its message replayed.
    """

    transient: ClassVar[Sequence[str]] = ()

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Get ready; called on an executor, before the first tuple."""

    @abstractmethod
    def execute(self, tuple: Tuple, collector: BasicCollector) -> None:
        """Process one tuple; every emit is anchored to it."""

    def cleanup(self) -> None:
        """Give up what `prepare` took; called when the run ends in an orderly way."""
