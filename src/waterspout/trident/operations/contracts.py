"""What user code is made of: the operations of a Trident stream.

Every operation travels to the executors pickled. `prepare` runs there, once per partition of
a batch, before the first tuple, and `cleanup` after the last; open connections in `prepare`.
A batch may be replayed: whatever an operation does beside returning values may happen again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from waterspout._config import Config
from waterspout._schema import FieldNames, Schema
from waterspout._signatures import refuse_misfit_methods
from waterspout._tuples import TridentTuple
from waterspout.state._base import Combiner

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = [
    "Aggregator",
    "Assembly",
    "CombinerAggregator",
    "Consumer",
    "Filter",
    "FlatMapFunction",
    "Function",
    "GroupedMultiReducer",
    "MapFunction",
    "MultiReducer",
    "Operation",
    "OperationContext",
    "QueryFunction",
    "ReducerAggregator",
    "StateUpdater",
    "TableUpdater",
    "TridentCollector",
    "describe",
]

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class OperationContext:
    """Which partition an operation runs on.

    `num_partitions` is None where there is no `parallelism_hint` and the number does not change
    the results: Spark chooses it then, for each batch anew.
    """

    partition_index: int
    num_partitions: int | None


class TridentCollector:
    """Takes what an operation emits: one sequence of values per output tuple."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[Sequence[Any]] = []

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one tuple of the declared output fields."""
        self.rows.append(values)


class Operation:
    """What all operations share."""

    deterministic: bool = True
    """False if the same tuples may give other results another time. A stream of such an
    operation counts as opaque, whatever its spout."""

    gives_one: bool = False
    """Whether each tuple gives exactly one; the page then knows what flows behind it."""

    def prepare(self, conf: Config, context: OperationContext) -> None:
        """Get ready. Called on the executor, once per partition of a batch."""

    def cleanup(self) -> None:
        """Give up what `prepare` took. Not called if the process dies."""

    def output_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        """Return the types of the output fields where they are known; None: written by the user."""
        return None

    def _check_use(self, inputs: Schema, where: str) -> None:
        """Refuse to be called with these fields. Called in the driver, when the stream is made."""
        refuse_misfit_methods(self, where)


class Function(Operation, ABC):
    """Appends fields: emits any number of tuples for each input tuple."""

    @abstractmethod
    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        """Emit the new values for one tuple; none drops it, several multiply it.

        Called once per tuple, and again when the batch is replayed.
        """


class Filter(Operation, ABC):
    """Keeps or drops tuples."""

    @abstractmethod
    def is_keep(self, tuple: TridentTuple) -> bool:
        """Whether the tuple stays. Called once per tuple, and again in a replay."""


class MapFunction(Operation, ABC):
    """Replaces each tuple by one other."""

    gives_one = True

    @abstractmethod
    def execute(self, tuple: TridentTuple) -> Sequence[Any]:
        """Return the values of the new tuple: one for each output field.

        Called once per tuple, and again when the batch is replayed.
        """


class FlatMapFunction(Operation, ABC):
    """Replaces each tuple by any number of others."""

    @abstractmethod
    def execute(self, tuple: TridentTuple) -> Iterable[Sequence[Any]]:
        """Return (or yield) the values of each new tuple; none drops it.

        Called once per tuple, and again when the batch is replayed.
        """


class Consumer(Operation, ABC):
    """Looks at tuples as they pass."""

    gives_one = True

    @abstractmethod
    def accept(self, tuple: TridentTuple) -> None:
        """Look at one tuple. Called once per tuple, and again in a replay."""


class Aggregator(Operation, ABC, Generic[T]):
    """Turns the tuples of a batch (or group) into any number of tuples.

    One object works on many groups at once: keep everything in the value, nothing in `self`.
    """

    @abstractmethod
    def init(self, batch_id: Any, collector: TridentCollector) -> T:
        """Return the value to start from; called before the first tuple.

        `batch_id` is the txid of the batch, or in a window its `WindowSpan`.
        """

    @abstractmethod
    def aggregate(self, value: T, tuple: TridentTuple, collector: TridentCollector) -> None:
        """Take in one tuple, changing `value` in place."""

    @abstractmethod
    def complete(self, value: T, collector: TridentCollector) -> None:
        """Emit the result; called after the last tuple."""


class ReducerAggregator(Operation, ABC, Generic[T]):
    """Folds tuples into one value, one after the other."""

    @abstractmethod
    def init(self) -> T:
        """Return the value to start from."""

    @abstractmethod
    def reduce(self, value: T, tuple: TridentTuple) -> T:
        """Return the value with one more tuple in it."""


class CombinerAggregator(Operation, Combiner, ABC, Generic[T]):
    """Makes a value of each tuple and combines values, in any order and grouping.

    `combine` must be associative and commutative, with `zero` as neutral element: tuples are
    combined on each partition before anything is sent, and batches are combined in the state.

    What is combined and kept in a state need not be what a reader sees: an average keeps a sum
    and a count. Such an aggregator sets `finishes` and has `finish` and `value_types`.
    """

    finishes: bool = False
    """True if `finish` is more than the value itself."""

    @abstractmethod
    def init(self, tuple: TridentTuple) -> T:
        """Return the value of one tuple."""

    @abstractmethod
    def combine(self, left: T, right: T) -> T:
        """Return both values as one; changes neither."""

    @abstractmethod
    def zero(self) -> T:
        """Return the value of no tuples."""

    def finish(self, value: T) -> Any:
        """Return what a reader sees of a combined value, which stays as it is.

        Called for each result that leaves an aggregation, and for each read of a state; never
        with None.
        """
        return value

    def value_types(self, inputs: Sequence[str | None]) -> Sequence[str | None] | None:
        """Return the types of what is combined and kept; those of the output, if not told."""
        return self.output_types(inputs)


class MultiReducer(Operation, ABC, Generic[T]):
    """Turns the tuples of several streams, of one batch, into any number of tuples."""

    @abstractmethod
    def init(self, collector: TridentCollector) -> T:
        """Return the value to start from; called once per partition, before the first tuple."""

    @abstractmethod
    def execute(
        self, value: T, stream_index: int, tuple: TridentTuple, collector: TridentCollector
    ) -> None:
        """Take in one tuple of one of the streams, changing `value` in place.

        The streams are numbered from 0, in the order in which they were given. Their tuples
        may come in any order. Called once per tuple, and again when the batch is replayed.
        """

    @abstractmethod
    def complete(self, value: T, collector: TridentCollector) -> None:
        """Emit the result; called after the last tuple of all streams."""


class GroupedMultiReducer(Operation, ABC, Generic[T]):
    """Turns the tuples of several grouped streams into tuples, group by group."""

    @abstractmethod
    def init(self, collector: TridentCollector, group: TridentTuple) -> T:
        """Return the value that a group starts from; called before its first tuple."""

    @abstractmethod
    def execute(
        self,
        value: T,
        stream_index: int,
        group: TridentTuple,
        tuple: TridentTuple,
        collector: TridentCollector,
    ) -> None:
        """Take in one tuple of one of the streams, changing `value` in place.

        Called once per tuple, and again when the batch is replayed.
        """

    @abstractmethod
    def complete(self, value: T, group: TridentTuple, collector: TridentCollector) -> None:
        """Emit the result of a group; called after the last tuple of all streams."""


class QueryFunction(Operation, ABC, Generic[S, T]):
    """Asks a state, for all tuples of a partition at once."""

    @abstractmethod
    def batch_retrieve(self, state: S, tuples: Sequence[TridentTuple]) -> Sequence[T]:
        """Return one answer per tuple, in order. Called once per partition of a batch."""

    @abstractmethod
    def execute(self, tuple: TridentTuple, result: T, collector: TridentCollector) -> None:
        """Emit the new values for one tuple and its answer."""


class StateUpdater(Operation, ABC, Generic[S]):
    """Updates a state with the tuples of a partition."""

    keys: FieldNames | None = None
    """The fields that are the key, where the state is a map.

    Tuples with the same key then go to the same partition, however many there are. In return
    the updater reads and changes only the keys of its tuples (of an opaque map also longer ones
    that begin so), and in a transactional map a key's new value comes of its tuples and its own
    old value alone. Without keys the map has one partition, where all tuples come to.
    """

    @abstractmethod
    def update_state(
        self, state: S, tuples: Sequence[TridentTuple], collector: TridentCollector
    ) -> None:
        """Apply the tuples, between `begin_commit` and `commit`; emit new values if any.

        Called in the commit phase, once per partition with tuples, in txid order; again with
        the same txid if the batch is replayed.
        """


class TableUpdater(StateUpdater[S]):
    """Updates a state with the rows of a partition as one Arrow table; what it emits is one too.

    For what comes with the library and would be slow row by row.
    """

    @abstractmethod
    def update_table(self, state: S, table: Any) -> Any:
        """Apply the rows as `update_state` does; return the emitted rows, of the update's fields.

        Called by whoever would call `update_state`, as often, and again in a replay.
        """

    def update_state(
        self, state: S, tuples: Sequence[TridentTuple], collector: TridentCollector
    ) -> None:
        raise NotImplementedError(f"{describe(self)} is given tables, not tuples")


class Assembly(ABC):
    """A piece of a stream, made of other operations: `stream.apply_assembly(FirstN(10))`."""

    @abstractmethod
    def apply(self, stream: Stream) -> Stream:
        """Return the stream with operations added. Called once, when the topology is built."""


def describe(operation: object) -> str:
    """Return a short name for plans and errors."""
    label = getattr(operation, "label", None)
    if isinstance(label, str):  # a Column answers to every name, with a Column
        return label
    return str(getattr(operation, "__name__", type(operation).__name__))
