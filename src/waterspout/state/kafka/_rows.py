"""Rows that are written to a topic of Kafka, each batch and partition in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from waterspout._kafka_servers import KafkaServers
from waterspout.errors import StoreError
from waterspout.state._base import Risk
from waterspout.state._head import Head, Stamp
from waterspout.state._header import StoreHeader
from waterspout.state._rows import RowsStore, rows_layout
from waterspout.state.kafka._heads import Deadline, HeadsReader
from waterspout.state.kafka._messages import Message, MessageForm
from waterspout.state.kafka._notes import (
    HEAD_PARTITION,
    Note,
    ToDo,
    head_key,
    next_move,
    next_write,
    note_key,
    note_partition,
    record_of_head,
    stored_head,
)
from waterspout.state.kafka._topics import StateTopics
from waterspout.state.kafka._transactions import Delivered, NamedTransactions

__all__ = ["KafkaRows"]

_HEAD_TIMEOUT_S = 10.0
"""How long a move of the head may be open: one record, and everybody waits for it."""


class KafkaRows(RowsStore):
    """The rows of one state in one topic; head and notes are in the topic of heads.

    Who writes does so under a name that belongs to the place and not to the writer: that of the
    head, or that of the partition. Whoever begins under it takes it from everybody else.
    """

    undoes_lost_attempts = False

    def __init__(
        self,
        topics: StateTopics,
        form: MessageForm,
        *,
        title: str,
        prefix: str,
        timeout_s: float,
        transaction_s: float,
    ) -> None:
        self._topics = topics
        self._form = form
        self._title = title
        self._prefix = f"{prefix}:{topics.heads}:{topics.topic}"
        self._timeout_s = timeout_s
        self._transaction_s = transaction_s
        layout = rows_layout(form.rows)
        self._header = StoreHeader(title, "topic", "transactional rows", layout, by_column=True)

    @property
    def _servers(self) -> KafkaServers:
        return self._topics.servers

    def read_head(self) -> Head | None:
        records = self._records(HEAD_PARTITION)
        return stored_head(self._header, records.get(head_key(self._topics.topic)))

    def move_head(self, expected: Head | None, new: Head) -> None:
        deadline = Deadline(self._timeout_s)
        if expected is None:
            self._topics.create(deadline)
        step = _Move(self._topics.topic, self._header, expected, new)
        names = self._named("head", _HEAD_TIMEOUT_S)
        names.run(step, deadline, txid=new.stamp.txid, partition=-1)

    def write_rows(self, stamp: Stamp, partition: int, rows: pa.Table) -> None:
        step = _Append(
            self._topics.topic, self._header, self._form, stamp, partition, rows,
            (HEAD_PARTITION, note_partition(partition)),
        )  # fmt: skip
        names = self._named(str(partition), self._transaction_s)
        names.run(step, Deadline(self._timeout_s), txid=stamp.txid, partition=partition)

    def has_rows_of(self, txid: int, partition: int) -> bool:
        """Whether the topic goes as far as the rows of a partition did; they may have aged out."""
        text = self._records(note_partition(partition)).get(note_key(self._topics.topic, partition))
        note = Note.from_text(text, self._title)
        if note is None or note.txid < txid:
            return False
        number, offset = note.place
        with HeadsReader.borrow(self._servers, self._topics.topic) as reader:
            end = reader.end(number, Deadline(self._timeout_s))
        return end is not None and end > offset

    def check(self) -> None:
        self._topics.check(Deadline(self._timeout_s))
        self.read_head()

    def risk(self) -> Risk | None:
        return self._topics.risk(Deadline(self._timeout_s))

    def read_rows(self, last: int, shard: int = 0, shards: int = 1) -> Iterator[pa.Table]:
        raise StoreError(
            f"{self._title} cannot list what it holds: a log gives up what has grown old. Read the "
            "topic with a consumer whose isolation.level is read_committed"
        )

    def _records(self, *partitions: int) -> Mapping[str, str]:
        with HeadsReader.borrow(self._servers, self._topics.heads) as reader:
            return reader.read(partitions, Deadline(self._timeout_s))

    def _named(self, what: str, timeout_s: float) -> NamedTransactions:
        topics = self._topics
        name = f"{self._prefix}:{what}"
        return NamedTransactions(topics.servers, topics.topic, topics.heads, name, timeout_s)


@dataclass
class _Move:
    """A move of the head."""

    topic: str
    header: StoreHeader
    expected: Head | None
    new: Head
    reads: Sequence[int] = (HEAD_PARTITION,)
    tried: bool = False

    def owner(self, records: Mapping[str, str]) -> str | None:
        return None

    def rows(self, records: Mapping[str, str]) -> Iterable[Message] | None:
        found = stored_head(self.header, records.get(head_key(self.topic)))
        todo = next_move(found, self.expected, self.new, tried=self.tried, header=self.header)
        self.tried = True
        return None if todo is ToDo.NOTHING else ()

    def record(self, written: Delivered) -> tuple[int, str, str]:
        return HEAD_PARTITION, head_key(self.topic), record_of_head(self.header, self.new)


@dataclass
class _Append:
    """The rows of one partition in one attempt."""

    topic: str
    header: StoreHeader
    form: MessageForm
    stamp: Stamp
    partition: int
    table: pa.Table = field(repr=False)
    reads: Sequence[int]

    def owner(self, records: Mapping[str, str]) -> str | None:
        note = self._note(records)
        return None if note is None else note.by

    def rows(self, records: Mapping[str, str]) -> Iterable[Message] | None:
        head = stored_head(self.header, records.get(head_key(self.topic)))
        todo = next_write(head, self._note(records), self.stamp, state=self.header.title)
        return None if todo is ToDo.NOTHING else self.form.messages(self.table)

    def record(self, written: Delivered) -> tuple[int, str, str]:
        stamp = self.stamp
        note = Note(stamp.txid, stamp.attempt, self.table.num_rows, written.place, written.by)
        key = note_key(self.topic, self.partition)
        return note_partition(self.partition), key, note.to_text()

    def _note(self, records: Mapping[str, str]) -> Note | None:
        text = records.get(note_key(self.topic, self.partition))
        return Note.from_text(text, self.header.title)
