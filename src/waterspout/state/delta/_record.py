"""The head of a state in a Delta table: what is stored, and which number names it. No I/O.

A Delta commit can carry an *application transaction*: the id of an application and a number of
its own. The table keeps the newest number of each id, also in checkpoints and when old log files
are removed; and of two commits that were made from the same version and bear the same id, Delta
refuses the later one. That is the fence: every commit of ours bears `APP_ID`.

A number is too small for a head. So each head is a small file of its own, in `_waterspout/` in the
table's folder, written before the commit, and the number names it: a count that grows with each
commit, and 31 random bits, so that what two drivers write at once are two files. A file that no
number in the log ever named does not count.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from waterspout._serde import decode_value, encode_value
from waterspout.errors import DamagedStoreError, SerdeError
from waterspout.state._head import Head, takes_over
from waterspout.state._header import StoreHeader

__all__ = [
    "APP_ID",
    "BATCH",
    "TableRecord",
    "batch_folder",
    "count_of",
    "file_name",
    "header_of",
    "next_number",
    "number_of",
]

APP_ID = "waterspout"
BATCH = "batch-"
_RANDOM_BITS = 31  # and 32 for the count: the number is a signed long
_NAME = re.compile(r"head-([0-9]{19})\.json")


def next_number(number: int | None) -> int:
    """Return the number of the record that follows the one of this number."""
    count = 0 if number is None else count_of(number)
    return (count + 1) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)


def count_of(number: int) -> int:
    """Return the position of a record in the history of its table."""
    return number >> _RANDOM_BITS


def file_name(number: int) -> str:
    """Return the name of a record's file."""
    return f"head-{number:019d}.json"


def number_of(name: str) -> int | None:
    """Return the number of a record's file; None if it is something else."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The head, and which attempt's rows were published last.

    `published` is its batch and attempt; None if its rows were taken back. `files` are the data
    files that attempts at that batch have added. Delta needs neither; they tell whether a lost
    attempt has left rows, and which files of a batch the log never had.
    """

    head: Head | None = None
    published: tuple[int, int] | None = None
    files: tuple[str, ...] = ()

    def moved(self, new: Head, *, taken_back: bool) -> TableRecord:
        """Return the record after a move of the head, with which rows were taken back or not."""
        return replace(self, head=new, published=None if taken_back else self.published)

    def showing(self, txid: int, attempt: int, files: Iterable[str]) -> TableRecord:
        """Return the record after an attempt has published these files."""
        begin = f"{batch_folder(txid)}/"
        earlier = tuple(name for name in self.files if name.startswith(begin))
        return TableRecord(self.head, (txid, attempt), (*earlier, *files))

    def leaves_rows(self, new: Head) -> bool:
        """Whether a move of the head leaves rows behind, of an attempt that is lost with it."""
        published = self.published is not None and self.published[0] >= new.stamp.txid
        return published and takes_over(self.head, new)

    def to_bytes(self, header: StoreHeader, number: int) -> bytes:
        """Return the content of the record's file."""
        rows = encode_value([self.published, self.files])
        fields = header.fields(self.head, rows=rows, number=number)
        return f"{encode_value(fields)}\n".encode("ascii")

    @classmethod
    def from_bytes(
        cls, raw: bytes, header: StoreHeader, number: int
    ) -> tuple[TableRecord, Mapping[str, Any]]:
        """Read a record, and the header that it was written with."""
        try:
            fields = decode_value(raw.decode("ascii").rstrip("\n"))
            rows, found = fields["rows"], fields["number"]
        except (SerdeError, ValueError, TypeError, KeyError) as error:
            raise DamagedStoreError(
                f"{header.title}: {file_name(number)} does not hold a head. Restore the table's "
                "folder from a copy."
            ) from error
        head = header.opened(fields)
        if found != number:
            raise DamagedStoreError(
                f"{header.title}: {file_name(number)} holds the head of another commit. Restore "
                "the table's folder from a copy."
            )
        published, files = decode_value(rows)
        record = cls(head, None if published is None else tuple(published), tuple(files))
        return record, fields


def batch_folder(txid: int) -> str:
    """Return the folder of a batch's data files, in the table's."""
    return f"{BATCH}{txid:010d}"


def header_of(title: str, kind: str, layout: str) -> StoreHeader:
    """Return what the header of a state in a Delta table must say."""
    summed = ("kind", "layout", "head", "rows", "number")
    return StoreHeader(title, "path", kind, layout, summed=summed, by_column=True)
