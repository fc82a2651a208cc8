"""The store of rows' dead letters: an opaque state, so a letter is there once for its batch.

It is not the store of a core topology's letters, which has no batches: these letters come and go
with the batches that wrote them, and each remembers what it was before the last batch.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout._letters import DeadLetter, refuse_when_full
from waterspout._own_files import make_private, private_folder
from waterspout._safe_repr import shown
from waterspout._schema import Schema
from waterspout._tuples import TridentTuple
from waterspout.errors import TooManyBadRowsError
from waterspout.spouts._malformed import located
from waterspout.state._base import BackingMap, StateFactory, StateKind
from waterspout.state._columns import Layout
from waterspout.state._head import Head
from waterspout.state._kinds import OpaqueMap
from waterspout.state._memory import MemoryMap
from waterspout.state.sqlite._map import SQLiteMap
from waterspout.trident.isolation.letters import LetterKey, LetterRequest, Seen, read_aside
from waterspout.trident.isolation.requests import Requests
from waterspout.trident.operations.contracts import StateUpdater, TridentCollector

__all__ = ["LETTERS_FILE", "Letters", "LettersFactory", "LettersLocation", "LettersUpdater"]

LETTERS_FILE = "letters.db"
_REQUESTS_FILE = "letter-requests.db"
_TABLE = "letters"
_EXAMPLES = 3
_KEYS = Schema.parse("txid bigint, attempt bigint, n bigint")
_VALUES = Schema.parse(
    "node string, fields string, row string, looks string, position string, error string, "
    "trace string, failures bigint, first_failed double, last_failed double"
)
# The attributes of a letter, in the order of these columns.
_ATTRIBUTES = (
    *("failed_in", "fields", "content", "looks", "position", "error"),
    *("trace", "failures", "first_failed", "last_failed"),
)


class _LettersTable(SQLiteMap):
    """The table of the letters. Rows that only remember a letter that is gone are deleted."""

    def move_head(self, expected: Head | None, new: Head) -> None:
        super().move_head(expected, new)
        if not new.committed:
            self._write(lambda db: self._forget(db, new.stamp.txid))

    def _connect(self, *, create: bool) -> sqlite3.Connection | None:
        if create and self._db is None:
            private_folder(self._path.parent)
            make_private(self._path)
        return super()._connect(create=create)

    def count(self) -> int:
        """Return how many letters there are, those of the batch at the head included."""
        with self._lock, self._errors():
            db = self._connect(create=False)
            if db is None or not self._has_own_table(db):
                return 0
            there = f"SELECT count(*) FROM {_TABLE} WHERE node IS NOT NULL"
            return int(db.execute(there).fetchone()[0])

    @staticmethod
    def _forget(db: sqlite3.Connection, txid: int) -> None:
        # The last committed batch can still be taken back; what went before it is settled.
        db.execute(f"DELETE FROM {_TABLE} WHERE node IS NULL AND _txid < ?", (txid - 1,))


class Letters(OpaqueMap[Any]):
    """The letters of one topology by key."""

    joins_late = True

    @property
    def txid_and_attempt(self) -> tuple[int, int]:
        """The batch that is being committed."""
        assert self._batch is not None
        return self._batch.attempt.txid, self._batch.attempt.attempt_id

    def count(self) -> int:
        """Return how many letters there are, as the batch that is being committed finds them."""
        if isinstance(self._backing, _LettersTable):
            return self._backing.count()
        keys = [key for chunk in self._backing.scan() for key, _ in chunk]
        if self._batch is None:
            return sum(value is not None for value in self.multi_get(keys))
        records = self._backing.multi_get(keys)
        found = [self._open(r, self._batch, k)[0] for k, r in zip(keys, records, strict=True)]
        return sum(value is not None for value in found)

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Put letters of this batch aside."""
        txid, attempt = self.txid_and_attempt
        keys = [LetterKey(txid, attempt, n) for n in range(len(letters))]
        columns = [tuple(getattr(letter, name) for name in _ATTRIBUTES) for letter in letters]
        self.multi_put(keys, columns)

    def remove(self, ids: Sequence[str]) -> None:
        """Take letters away that are there."""
        keys = [LetterKey.parse(id) for id in ids]
        found = zip(keys, self.multi_get(keys), strict=True)
        there = [key for key, value in found if value is not None]
        self.multi_put(there, [None] * len(there))

    def all(self) -> list[DeadLetter]:
        """Return the committed letters, oldest first."""
        found = sorted((LetterKey(*key), value) for chunk in self.scan() for key, value in chunk)
        return [
            DeadLetter(
                id=str(key),
                txid=key.txid,
                attempt=key.attempt,
                **dict(zip(_ATTRIBUTES, value, strict=True)),
            )
            for key, value in found
        ]

    def has(self, id: str) -> bool:
        """Tell whether a letter is there, in a committed batch."""
        return self.multi_get([LetterKey.parse(id)]) != [None]


class LettersUpdater(StateUpdater[Letters]):
    """Adds a batch's letters and removes those that were asked for; too many stop the run."""

    def __init__(self, limit: int, max_bad_ratio: float, sources: Sequence[str] = ()) -> None:
        self._limit = limit
        self._max_bad_ratio = max_bad_ratio
        self._sources = sources
        """Those whose letters are records of files, which say in which line they are."""

    def update_state(
        self, state: Letters, tuples: Sequence[TridentTuple], collector: TridentCollector
    ) -> None:
        asides = [read_aside(row[0]) for row in tuples]
        letters = located([e for e in asides if isinstance(e, DeadLetter)], self._sources)
        seen = Counter[str]()
        for each in asides:
            if isinstance(each, Seen):
                seen.update(each.rows)
        self._refuse_too_many(letters, seen, state)
        gone = [each.letter.id for each in asides if isinstance(each, LetterRequest)]
        state.remove(gone)
        if letters:  # otherwise there is nothing to count for
            before = state.count() - len(gone)
            refuse_when_full(before, letters, self._limit, "the batch is committed")
        state.add(letters)

    def _refuse_too_many(
        self, letters: Sequence[DeadLetter], seen: Counter[str], state: Letters
    ) -> None:
        # Rows that were replayed do not count: they were known to be bad.
        fresh = [letter for letter in letters if letter.failures == 1]
        for node, bad in Counter(letter.failed_in for letter in fresh).items():
            if bad > self._max_bad_ratio * seen[node]:
                errors = [
                    letter.error.split("\n")[0] for letter in fresh if letter.failed_in == node
                ]
                txid, _ = state.txid_and_attempt
                examples = "; ".join(shown(e)[1:-1] for e in dict.fromkeys(errors[:_EXAMPLES]))
                raise TooManyBadRowsError(
                    f"{bad:,} of the {seen[node]:,} rows of batch {txid} that came to {node} are "
                    f"bad: {bad / max(1, seen[node]):.1%}, and max_bad_ratio allows "
                    f"{self._max_bad_ratio:.1%}. Nothing of the batch was committed. Mend the "
                    f"operation or the source, or raise max_bad_ratio, and run the same command "
                    f"again. Errors: {examples}"
                )


@dataclass(frozen=True, slots=True)
class LettersLocation:
    """Where a topology's letters and the requests for them are: a folder, or this process."""

    folder: Path | None = None
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def exists(self) -> bool:
        """Whether letters were ever kept in this folder."""
        return self.folder is not None and (self.folder / LETTERS_FILE).exists()

    @property
    def where(self) -> str:
        """What errors call it."""
        return "this process" if self.folder is None else str(self.folder / LETTERS_FILE)

    def requests(self) -> Requests:
        """Return the requests."""
        if self.folder is not None:
            return Requests(self.folder / _REQUESTS_FILE)
        with _shared_lock:
            if self.token not in _shared:
                _shared[self.token] = (MemoryMap("the dead letters"), Requests(None))
            return _shared[self.token][1]

    def backing(self) -> BackingMap[Any]:
        """Return the map of the letters."""
        if self.folder is not None:
            return _LettersTable(
                self.folder / LETTERS_FILE, _TABLE, StateKind.OPAQUE, Layout(_KEYS, _VALUES)
            )
        self.requests()
        return _shared[self.token][0]

    def open(self) -> Letters:
        """Return the state that holds the letters."""
        return Letters(self.backing(), name="the dead letters")

    def count(self) -> int:
        """Return how many letters there are, without reading them."""
        with closing(self.open()) as state:
            return state.count()

    def letters(self) -> list[DeadLetter]:
        """Return the committed letters, oldest first, with what was asked for each."""
        with closing(self.open()) as state, closing(self.requests()) as requests:
            asked = requests.asked()
            return [replace(letter, asked=asked.get(letter.id)) for letter in state.all()]


_shared: dict[str, tuple[MemoryMap[Any], Requests]] = {}
_shared_lock = threading.Lock()


@dataclass(frozen=True)
class LettersFactory(StateFactory):
    """Recipe of the letters' state; only the driver writes it."""

    letters: LettersLocation

    kind = StateKind.OPAQUE
    driver_only = True
    fenced = True

    @property
    def volatile(self) -> bool:  # type: ignore[override]
        """Whether they end with this process."""
        return self.letters.folder is None

    def make_state(self, conf: Config, partition_index: int, num_partitions: int) -> Letters:
        return self.letters.open()

    def identity(self) -> Mapping[str, Any]:
        return {"backend": "dead letters"}  # the folder may be moved

    def check(self) -> None:
        backing = self.letters.backing()
        if isinstance(backing, _LettersTable):
            with closing(backing):
                backing.check()

    def location(self) -> str:
        if self.letters.folder is None:
            return f"memory:letters-{self.letters.token}"
        return f"sqlite:{self.letters.folder / LETTERS_FILE}#{_TABLE}"
