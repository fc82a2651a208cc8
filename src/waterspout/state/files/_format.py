"""How a state lies in files: names, heads and records. Pure text, no I/O.

A folder holds one state. Its files are written once and never changed:

    head-EPOCH-SEQ-WRITER.json    the head, and the list of the files that make up the state
    claim-EPOCH-SEQ-WRITER.json   a new driver announces itself, before its first head
    data-EPOCH-SEQ-RANDOM.txt     records: of one write (a delta), or of many (a snapshot)
    temp-EPOCH-SEQ-RANDOM.tmp     a head on its way to its name

A data file is one line of JSON, then one line for each record: the key, a tab, the record, both
JSON; a key without a record was removed. Each file ends with a checksum of all that precedes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from waterspout._serde import checksum, decode_value, encode_value
from waterspout.errors import DamagedStoreError, SerdeError
from waterspout.state._head import Head, Writer
from waterspout.state._header import FORMAT, refuse_newer

__all__ = [
    "DataFile",
    "Manifest",
    "Name",
    "StateShape",
    "decode_records",
    "encode_records",
    "writer_tag",
]

_NAME = re.compile(
    r"(head|claim|data|temp)-([0-9]{12,20})-([0-9]{12,20})-([0-9a-f]{16})\.(json|txt|tmp)"
)
_SUFFIX = {"head": "json", "claim": "json", "data": "txt", "temp": "tmp"}
_LINES = 20_000  # of one chunk
_END = 34  # a `#`, 32 hex digits, and the end of the line


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a file: what it is, the head that it came with, and whose it is."""

    what: str
    epoch: int
    seq: int
    tag: str

    @property
    def position(self) -> tuple[int, int]:
        """Its position in the history: a later driver's is behind all of an earlier one's."""
        return self.epoch, self.seq

    def __str__(self) -> str:
        return f"{self.what}-{self.epoch:012d}-{self.seq:012d}-{self.tag}.{_SUFFIX[self.what]}"

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """Return the name, or None if it is not one of ours."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        name = cls(match[1], int(match[2]), int(match[3]), match[4])
        return name if str(name) == text else None


def writer_tag(writer: Writer | None) -> str:
    """Return what stands for a writer in names: two leases never have the same."""
    if writer is None:
        return "0" * 16
    return checksum(encode_value([writer.owner, writer.history, writer.lease]))[:16]


@dataclass(frozen=True, slots=True)
class StateShape:
    """The kind and the columns of a state, as text."""

    kind: str
    layout: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that belongs to the state."""

    name: str
    size: int
    check: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The head of a state, and the files that it is made of, oldest first.

    `line` has the random ids of this head file and of those before it that it follows from.
    """

    shape: StateShape
    head: Head | None = None
    snapshot: tuple[DataFile, ...] = ()
    deltas: tuple[DataFile, ...] = ()
    line: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All data files in the order in which they are read."""
        return self.snapshot + self.deltas

    def to_bytes(self) -> bytes:
        """Return the content of a head file."""
        fields = {
            "waterspout": "head",
            "format": FORMAT,
            "kind": self.shape.kind,
            "layout": self.shape.layout,
            "head": None if self.head is None else self.head.to_text(),
            "snapshot": [[file.name, file.size, file.check] for file in self.snapshot],
            "deltas": [[file.name, file.size, file.check] for file in self.deltas],
            "line": list(self.line),
        }
        line = f"{encode_value(fields)}\n".encode("ascii")
        return line + _ending(_digest(line))

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> Manifest:
        """Read a head file; `where` is what errors call it."""
        line = _checked(raw, where)
        fields = _header(line, where)
        if fields.get("waterspout") != "head":
            raise DamagedStoreError(f"{where} is not the head of a state")
        text = fields["head"]
        return cls(
            StateShape(fields["kind"], fields["layout"]),
            None if text is None else Head.from_text(text),
            tuple(DataFile(*file) for file in fields["snapshot"]),
            tuple(DataFile(*file) for file in fields["deltas"]),
            tuple(fields["line"]),
        )


def encode_records(
    shape: StateShape, written_by: str, records: Mapping[str, str]
) -> Iterator[tuple[bytes, str]]:
    """Yield the content of a data file in chunks, each with the checksum of all so far.

    `records` has texts of records by texts of keys; an empty text removes the key.
    """
    removed = sum(not text for text in records.values())
    fields = {
        "waterspout": "records",
        "format": FORMAT,
        "kind": shape.kind,
        "layout": shape.layout,
        "written_by": written_by,
        "records": len(records),
        "removed": removed,
    }
    digest = _digest(b"")
    chunk = f"{encode_value(fields)}\n".encode("ascii")
    lines = iter(records.items())
    while chunk:
        digest.update(chunk)
        yield chunk, digest.hexdigest()
        chunk = "".join([f"{k}\t{text}\n" for k, text in islice(lines, _LINES)]).encode("ascii")
    yield _ending(digest), digest.hexdigest()


def decode_records(raw: bytes, file: DataFile, *, where: str) -> tuple[dict[str, str], bool]:
    """Return the records of a data file, and whether any of them removes its key.

    The checksum must be the one in the file and the one in the head that names it.
    """
    content = _checked(raw, where)
    if len(raw) != file.size or raw[1 - _END : -1] != file.check.encode("ascii"):
        raise DamagedStoreError(f"{where} is not the file that the head of the state names")
    end = content.index(b"\n") + 1
    fields = _header(content[:end], where)
    texts = content[end:].decode("ascii").replace("\n", "\t").split("\t")
    pairs = iter(texts)
    records = dict(zip(pairs, pairs, strict=False))  # what is left over is the end of the last line
    if len(texts) != 2 * fields["records"] + 1 or len(records) != fields["records"]:
        raise DamagedStoreError(f"{where} does not hold as many records as it says")
    return records, fields["removed"] > 0


def _digest(content: bytes) -> Any:
    return hashlib.blake2b(content, digest_size=16)


def _ending(digest: Any) -> bytes:
    return f"#{digest.hexdigest()}\n".encode("ascii")


def _checked(raw: bytes, where: str) -> bytes:
    """Return what a file holds before its checksum."""
    content = raw[:-_END]
    if len(raw) <= _END or raw[-_END:] != _ending(_digest(content)):
        raise DamagedStoreError(
            f"{where} is damaged: its content does not match its checksum. Restore the folder "
            "from a copy."
        )
    return content


def _header(line: bytes, where: str) -> dict[str, Any]:
    try:
        fields = decode_value(line.decode("ascii").rstrip("\n"))
        form = int(fields["format"])
    except (SerdeError, TypeError, KeyError, ValueError) as error:
        raise DamagedStoreError(f"{where} does not begin as waterspout's files do") from error
    refuse_newer(form, where, "folder")
    return dict(fields)
