"""Records of files that are not what their schema says, and those that are too long.

What becomes of one, its spout says: it fails the batch, or is a dead letter, or is read as nulls or
left out where somebody asked for that by name. Here is where it stands and how that is told.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import unquote, urlsplit

from waterspout._letters import DeadLetter, stored_form
from waterspout._safe_repr import shown
from waterspout._schema import Schema
from waterspout.errors import MalformedRowError, TopologyError

__all__ = [
    "CORRUPT",
    "KEPT_MAX",
    "MARK",
    "RECORD",
    "TEXT_MAX",
    "OnMalformed",
    "TooLong",
    "chosen",
    "letter_of_record",
    "letter_of_too_long",
    "located",
    "malformed",
    "marked_record",
    "reader_options",
    "records_too_long",
    "refuse_too_long",
    "why",
]

CORRUPT = "_waterspout_corrupt"
"""The column, while a batch is read, that has the text of a record that is malformed."""

RECORD = Schema((("record", "string"),))
"""The fields of a letter of such a record: its text."""

MARK = "waterspout-malformed:"
"""Stands, in the text that Spark passes on, before the file and the text of a record, as JSON."""

TEXT_MAX = 2_000
"""How much of it that is."""

SHOWN_MAX = 200
KEPT_MAX = 1_000_000
"""A longer text is not kept in a letter; what it begins with is."""

_LOOK = 1 << 16
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".snappy", ".deflate")
_MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


class OnMalformed(Enum):
    """What becomes of a record that does not fit its schema."""

    FAIL = "fail"
    DEAD_LETTER = "dead_letter"
    NULL = "null"
    DROP = "drop"
    """Only by Spark's own name for it: the option `mode="DROPMALFORMED"`."""


def chosen(
    format: str, schema: Schema, on_error: str | None, options: Mapping[str, str]
) -> OnMalformed | None:
    """Return what somebody has chosen for malformed records; None: nobody has.

    Spark's names count too: the option `mode`, and a field of the schema for the text of
    malformed records.
    """
    given = {name.lower(): value for name, value in options.items()}
    mode = given.get("mode")
    if on_error not in (None, "fail", "dead_letter", "null"):
        raise TopologyError(
            f'FileSpout: on_error is "fail", "dead_letter" or "null", not {on_error!r}'
        )
    if mode is not None and mode.upper() not in _MODES:
        raise TopologyError(f"FileSpout: mode is one of {', '.join(_MODES)}, not {mode!r}")
    corrupt = given.get("columnnameofcorruptrecord", "_corrupt_record")
    reads_text = format in ("json", "csv") and corrupt in schema.names
    if on_error is not None and (mode is not None or reads_text):
        what = f"the option mode={mode!r}" if mode is not None else f"the field {corrupt!r}"
        raise TopologyError(
            f"FileSpout: on_error={on_error!r} and {what} both say what becomes of a malformed "
            "record; leave one of them out"
        )
    if on_error is not None:
        return OnMalformed(on_error)
    if mode is not None:
        named = (OnMalformed.NULL, OnMalformed.DROP, OnMalformed.FAIL)
        return dict(zip(_MODES, named, strict=True))[mode.upper()]
    return OnMalformed.NULL if reads_text else None


def reader_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's reader without those that say what is malformed."""
    ours = ("mode", "columnnameofcorruptrecord")
    return {name: value for name, value in options.items() if name.lower() not in ours}


@dataclass(frozen=True, slots=True)
class TooLong:
    """A record of more bytes than there may be, its line break included."""

    path: str
    start: int
    size: int
    head: str

    @property
    def position(self) -> str:
        """Where it is."""
        return f"{self.path}#byte {self.start}"

    def error(self, max_bytes: int) -> MalformedRowError:
        """Return what is wrong with it."""
        return MalformedRowError(
            f"{self.path}, byte {self.start}: a record of {self.size:,} bytes, and "
            f"max_record_bytes is {max_bytes:,}: {shown(self.head, SHOWN_MAX)}. Nothing of the "
            "batch was committed. Raise max_record_bytes, or put such records aside with "
            'on_error="dead_letter", and run the same command again.'
        )


def records_too_long(
    path: str, size: int, max_bytes: int, options: Mapping[str, str]
) -> list[TooLong]:
    """Return the records of a file that are too long; reads next to nothing where none is.

    A break in the last bytes of every stretch of `max_bytes` is enough. Not for compressed files,
    nor where a record may have line breaks in it.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    many_lines = given.get("multiline", given.get("wholetext", "")).lower() == "true"
    if size <= max_bytes or many_lines or path.endswith(_COMPRESSED):
        return []
    breaks = [given["linesep"].encode()] if "linesep" in given else [b"\n", b"\r"]
    found = []
    with open(path, "rb") as file:
        start = 0
        while size - start > max_bytes:
            end = _last_break(file, start, start + max_bytes, breaks)
            if end is None:
                end = _next_break(file, start + max_bytes, size, breaks)
                file.seek(start)
                head = file.read(min(end - start, _LOOK // 16)).decode("utf-8", "replace")
                found.append(TooLong(path, start, end - start, head))
            start = end
    return found


def _last_break(file: Any, start: int, end: int, breaks: Sequence[bytes]) -> int | None:
    """Return where the last line that ends in a stretch ends; None if none does."""
    stop = end
    while stop > start:
        begin = max(start, stop - _LOOK)
        file.seek(begin)
        # A byte more: a return before a line feed is the same break.
        chunk, inside = file.read(stop - begin + 1), stop - begin
        at = max(_end_of_last(chunk, one, inside) for one in breaks)
        if at >= 0:
            return int(begin + at)
        stop = begin + max(map(len, breaks)) - 1 if begin > start else start
    return None


def _end_of_last(chunk: bytes, one: bytes, inside: int) -> int:
    at = chunk.rfind(one, 0, inside)
    if one == b"\r" and chunk[at + 1 : at + 2] == b"\n":
        at = chunk.rfind(one, 0, at)
        if chunk[at + 1 : at + 2] == b"\n":
            return -1
    return at + len(one) if at >= 0 else -1


def _next_break(file: Any, begin: int, size: int, breaks: Sequence[bytes]) -> int:
    """Return where the line ends that goes on here."""
    width = max(map(len, breaks))
    at = max(0, begin - width + 1)
    while at < size:
        file.seek(at)
        chunk = file.read(_LOOK)
        ends = [chunk.find(one) + len(one) for one in breaks if one in chunk]
        if ends:
            end = int(at + min(ends))
            file.seek(end - 1)
            pair = file.read(2)
            return end + (pair == b"\r\n" and b"\n" in breaks)
        at += max(1, len(chunk) - width + 1)
    return size


def refuse_too_long(found: Sequence[TooLong], max_bytes: int) -> None:
    """Raise if there is a record that is too long."""
    if found:
        raise found[0].error(max_bytes)


def malformed(path: str, text: str, format: str, schema: object) -> MalformedRowError:
    """Return the error of a record, with its line if that can be found."""
    lines = next(iter(_lines_of(path, [text]).values()), [])
    where = f"{path}, line {lines[0]}" if lines else path
    return MalformedRowError(
        f"{where}: this is not {format} of {schema}: {shown(text, SHOWN_MAX)}. Nothing of the "
        'batch was committed. Put such records aside with on_error="dead_letter", to be mended and '
        'replayed, or take nulls for what cannot be read with on_error="null", and run the same '
        "command again."
    )


def letter_of_record(node: str, text: str, path: str, format: str, schema: Schema) -> DeadLetter:
    """Return the letter of a record; its line is found later."""
    now = time.time()
    content, looks = stored_form([text]) if len(text) <= KEPT_MAX else (None, shown(text))
    return DeadLetter(
        failed_in=node,
        fields=str(RECORD),
        content=content,
        looks=looks,
        position=path,
        error=why(format, schema),
        first_failed=now,
        last_failed=now,
    )


def why(format: str, schema: Schema) -> str:
    """Return the error in the letter of a record."""
    return f"MalformedRowError: this is not {format} of {schema}"


def letter_of_too_long(node: str, record: TooLong, max_bytes: int) -> DeadLetter:
    """Return the letter of a record that is too long: only how it begins is kept."""
    now = time.time()
    return DeadLetter(
        failed_in=node,
        fields=str(RECORD),
        content=None,
        looks=shown([record.head], 10_000),
        position=record.position,
        error=f"MalformedRowError: a record of {record.size:,} bytes, and max_record_bytes is "
        f"{max_bytes:,}",
        first_failed=now,
        last_failed=now,
    )


def located(letters: Sequence[DeadLetter], sources: Iterable[str]) -> list[DeadLetter]:
    """Return letters with the lines of those that are records of files, as far as can be told.

    Of records with the same text, each gets one of the lines; they are the same otherwise, too.
    """
    nodes, wanted = set(sources), dict[str, list[str]]()
    letters = [_with__plain_path(letter, nodes) for letter in letters]
    for letter in letters:
        if _is_without_line(letter, nodes):
            wanted.setdefault(str(letter.position), []).append(str(letter.values[0]))  # type: ignore[index]
    lines = {path: _lines_of(path, texts) for path, texts in wanted.items()}
    made = []
    for letter in letters:
        if _is_without_line(letter, nodes):
            found = lines[str(letter.position)].get(str(letter.values[0]))  # type: ignore[index]
            if found:
                letter = replace(letter, position=f"{letter.position}#line {found.pop(0)}")
        made.append(letter)
    return made


def _with__plain_path(letter: DeadLetter, nodes: set[str]) -> DeadLetter:
    if letter.failed_in not in nodes or letter.position is None:
        return letter
    return replace(letter, position=_plain_path(letter.position))


def _is_without_line(letter: DeadLetter, nodes: set[str]) -> bool:
    known = letter.failed_in in nodes and letter.failures == 1 and letter.content is not None
    if letter.position is None or letter.position.startswith("{"):  # that of a message
        return False
    return known and "#" not in os.path.basename(letter.position)


def _lines_of(path: str, texts: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the lines with these texts; nothing where the file cannot tell."""
    wanted, found = {_plain(text): text for text in texts}, dict[str, list[int]]()
    if path.endswith(_COMPRESSED):
        return found
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(_bounded_lines(file), 1):
                text = wanted.get(_plain(line.decode("utf-8", "replace")))
                if text is not None:
                    found.setdefault(text, []).append(number)
    except OSError:
        return {}
    return found


def _bounded_lines(file: Any) -> Iterator[bytes]:
    for line in file:
        yield from line[: KEPT_MAX + 10].rstrip(b"\r\n").split(b"\r")


def _plain(text: str) -> str:
    return text.rstrip("\r\n").lstrip("\ufeff")[:TEXT_MAX]


def _plain_path(address: str) -> str:
    """Return the path that Spark names as a URI.

    >>> _plain_path("file:///a%20b/c.json"), _plain_path("/a b")
    ('/a b/c.json', '/a b')
    """
    return unquote(urlsplit(address).path) if address.startswith("file:") else address


def marked_record(text: str) -> MalformedRowError | None:
    """Return the error of a malformed record that an error of Spark's tells of, if it does."""
    start = text.find(MARK)
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start + len(MARK))
    except ValueError:  # cut short on its way
        return MalformedRowError(f"a record of a file is malformed: {text[start:][:SHOWN_MAX]}")
    return malformed(_plain_path(found["path"]), found["text"], found["format"], found["fields"])
