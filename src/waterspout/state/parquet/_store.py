"""Rows in a folder of Parquet files, with a manifest that says which of them count.

The manifest is a file state (`state/files`): its keys are the names of files, its head is the head
of the rows. So a batch is published by one write of it, which is fenced; and the claim of a later
attempt takes the files of a lost one out of it, in the same write. Only then are files moved to
where readers see them who do not know the manifest (`_placing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

import pyarrow as pa

from waterspout._addresses import Secrets
from waterspout._arrow import arrow_schema
from waterspout._schema import Schema
from waterspout.errors import FencedError, ForeignStoreError, OutageError, StoreError
from waterspout.state._base import StateKind
from waterspout.state._head import Head, Stamp, check_stamp, goes_on, replaces_attempt
from waterspout.state._kinds import OpaqueValue
from waterspout.state._row_files import (
    PartName,
    RowFile,
    check_there,
    files_of,
    parquet_bytes,
    parquet_rows,
    receipt_of,
)
from waterspout.state._rows import RowsStore
from waterspout.state.files._locations import Folder, is_outage
from waterspout.state.files._state import FileMap
from waterspout.state.parquet._placing import STAGING, batch_of, places_in

__all__ = ["MANIFEST", "ParquetRows"]

MANIFEST = "_waterspout"


class ParquetRows(RowsStore):
    """The rows of one folder."""

    def __init__(
        self,
        folder: Folder,
        rows: Schema,
        layout: str,
        *,
        title: str = "the Parquet files",
        secrets: Secrets = Secrets(),  # noqa: B008  # it is frozen
    ) -> None:
        self._folder = folder
        self._places = places_in(folder)
        self._schema = arrow_schema(rows)
        self._title = title
        self._secrets = secrets
        kind, inside = StateKind.OPAQUE, folder.inside(MANIFEST)
        self._manifest = FileMap(inside, kind, layout, title=title, secrets=secrets)

    def read_head(self) -> Head | None:
        head = self._manifest.read_head()
        if head is None:
            self._refuse_other_files()
        return head

    def move_head(self, expected: Head | None, new: Head) -> None:
        txid, replaces = new.stamp.txid, replaces_attempt(expected, new)
        lost = [name for name, _ in self._entries(txid, txid)] if replaces else []
        self._manifest.move_head(expected, new)
        with self._errors("cleaned up"):
            if replaces:
                # A lower number is a lost attempt's; a higher one is of who has overtaken us.
                attempt = new.stamp.attempt
                self._places.hide_lost(
                    txid,
                    lambda name: name.txid == txid and name.attempt < attempt,
                    [name.rpartition("/")[2] for name in lost],
                )
            elif expected is not None and goes_on(expected, new):
                with suppress(OSError):  # the next batch tries again
                    self._places.forget(expected.stamp.txid)

    def write_rows(self, stamp: Stamp, partition: int, rows: pa.Table) -> str | None:
        content = parquet_bytes(rows.select(self._schema.names).cast(self._schema))
        name = str(PartName.new(stamp.txid, stamp.attempt, partition))
        with self._errors("written"):
            self._places.staging.create()
            self._places.staging.write(name, [content])
        return receipt_of(RowFile(name, content.size, rows.num_rows))

    def publish(self, stamp: Stamp, receipts: Sequence[str]) -> None:
        files = files_of(receipts)
        check_stamp(self.read_head(), stamp, state=self._title)
        if not files:
            return
        keys = [(f"{batch_of(stamp.txid)}/{file.name}",) for file in files]
        names = [file.name for file in files]
        if None in self._manifest.multi_get(keys):
            self._refuse_missing(stamp, files)
            values = [[file.size, file.rows] for file in files]
            records = [OpaqueValue(stamp.txid, stamp.attempt, value) for value in values]
            self._manifest.fenced_put(stamp, keys, records)
        with self._errors("published"):
            self._places.show(stamp, names)
            self._take_back_if_overtaken(stamp, names)

    def _refuse_missing(self, stamp: Stamp, files: Sequence[RowFile]) -> None:
        with self._errors("published"):
            sizes = [self._places.staging.size(file.name) for file in files]
        if sizes != [file.size for file in files]:
            # Whoever has taken over since has removed them.
            check_stamp(self._manifest.read_head(), stamp, state=self._title)
        for file, size in zip(files, sizes, strict=True):
            check_there(file, size, self._title)

    def _take_back_if_overtaken(self, stamp: Stamp, names: Sequence[str]) -> None:
        """Look again: whoever has taken over since may have looked before the files were there."""
        try:
            check_stamp(self._manifest.read_head(), stamp, state=self._title)
        except FencedError:
            self._places.hide(stamp.txid, names)
            raise

    def has_rows_of(self, txid: int, partition: int) -> bool:
        for name, (size, _) in self._entries(txid, txid):
            part = PartName.parse(name.rpartition("/")[2])
            if part is not None and part.partition == partition:
                with self._errors("read"):
                    return bool(self._folder.size(name) == size)
        return False

    def read_rows(self, last: int, shard: int = 0, shards: int = 1) -> Iterator[pa.Table]:
        for name, _ in self._entries(1, last):
            if crc32(name.encode("ascii")) % shards == shard:
                with self._errors("read"):
                    raw = self._folder.read(name)
                yield parquet_rows([raw], self._schema)

    def _entries(self, first: int, last: int) -> Iterator[tuple[str, Any]]:
        """Yield the files of some batches that the manifest has, with bytes and rows."""
        for chunk in self._manifest.scan():
            for (name,), record in chunk:
                if record.value is not None and first <= record.txid <= last:
                    yield name, record.value

    def check(self) -> None:
        self._manifest.check()
        self.read_head()

    def close(self) -> None:
        self._manifest.close()

    def _refuse_other_files(self) -> None:
        with self._errors("read"):
            others = sorted(set(self._folder.names()) - {MANIFEST, STAGING})
        if others:
            raise ForeignStoreError(
                f"{self._title}: the folder has files that waterspout did not make, such as "
                f"{others[0]}. Use another."
            )

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            said = self._secrets.hidden(str(error))
            text = f"{self._title}: rows cannot be {done}: {said}"
            found = OutageError("files", text) if is_outage(error) else StoreError(text)
            raise found from self._secrets.cause(error)
