"""Rows in a Delta table: tasks put down Parquet files, one commit of the driver shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa

from waterspout._addresses import Secrets
from waterspout._arrow import arrow_schema
from waterspout._schema import Schema
from waterspout.errors import OutageError, StoreError
from waterspout.state._head import Head, Stamp, check_stamp, goes_on
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
from waterspout.state.delta._record import TableRecord, batch_folder, header_of
from waterspout.state.delta._stats import stats_of
from waterspout.state.delta._storage import table_folder
from waterspout.state.delta._table import (
    ATTEMPT,
    HEADS,
    TXID,
    TableLog,
    Work,
    add_files,
    merge_rows,
    remove_from,
)
from waterspout.state.files._locations import Folder, is_outage

__all__ = ["DeltaRows", "table_columns"]

STAGED = f"{HEADS}/staged"
"""Where rows lie that are to be merged: not in the table itself, as they are no part of it."""


class DeltaRows(RowsStore):
    """The rows of one Delta table.

    Rows to be appended are put down as data files of the table, and one commit adds them all. Rows
    to be upserted are put down beside it, and one commit merges them. Either commit bears the head.
    """

    def __init__(
        self,
        uri: str,
        options: dict[str, str],
        rows: Schema,
        kind: str,
        layout: str,
        *,
        keys: Sequence[str] = (),
        order_by: str | None = None,
        title: str = "the Delta table",
        secrets: Secrets = Secrets(),  # noqa: B008  # it is frozen
    ) -> None:
        self.undoes_lost_attempts = not keys
        self._uri = uri
        self._options = options
        self._names = list(rows.names)
        self._columns = table_columns(rows)
        self._keys = tuple(keys)
        self._order_by = order_by
        self._header = header_of(title, kind, layout)
        self._secrets = secrets
        self._opened: tuple[Folder, TableLog] | None = None

    @property
    def _folder(self) -> Folder:
        return self._open()[0]

    @property
    def _log(self) -> TableLog:
        return self._open()[1]

    def _open(self) -> tuple[Folder, TableLog]:
        if self._opened is None:
            folder = table_folder(self._uri, self._options)
            options, header = self._options, self._header
            log = TableLog(self._uri, options, folder, header, self._columns, self._secrets)
            self._opened = folder, log
        return self._opened

    def read_head(self) -> Head | None:
        record = self._log.look()
        return None if record is None else record.head

    def move_head(self, expected: Head | None, new: Head) -> None:
        takes_back = False

        def decide(record: TableRecord | None) -> TableRecord:
            nonlocal takes_back
            known = record or TableRecord()
            if known.head != expected:
                raise self._header.moved(new, known.head)
            takes_back = self.undoes_lost_attempts and known.leaves_rows(new)
            return known.moved(new, taken_back=takes_back)

        def work(table: object, properties: object) -> bool:
            return takes_back and remove_from(new.stamp.txid)(table, properties)

        self._log.commit(decide, work)
        if expected is not None and goes_on(expected, new):
            self._remove_orphans(expected.stamp.txid)

    def write_rows(self, stamp: Stamp, partition: int, rows: pa.Table) -> str | None:
        count = rows.num_rows
        stamped = rows.append_column(TXID, pa.array([stamp.txid] * count, pa.int64()))
        stamped = stamped.append_column(ATTEMPT, pa.array([stamp.attempt] * count, pa.int64()))
        # By name: a column that was added later stands behind ours in the table.
        stamped = stamped.select(self._columns.names).cast(self._columns)
        content = parquet_bytes(stamped)
        name = str(PartName.new(stamp.txid, stamp.attempt, partition))
        place = STAGED if self._keys else batch_folder(stamp.txid)
        folder = self._folder.inside(place)
        with self._file_errors():
            folder.create()
            folder.write(name, [content])
        stats = "" if self._keys else stats_of(stamped)
        return receipt_of(RowFile(f"{place}/{name}", content.size, count, stats))

    def publish(self, stamp: Stamp, receipts: Sequence[str]) -> None:
        files = files_of(receipts)
        todo: list[Work] = []

        def decide(record: TableRecord | None) -> TableRecord | None:
            known = record or TableRecord()
            check_stamp(known.head, stamp, state=self._header.title)
            if not files or self._has(known, stamp):
                return None
            if not todo:
                todo.append(self._publishing(stamp, files))
            names = [] if self._keys else [file.name for file in files]
            return known.showing(stamp.txid, stamp.attempt, names)

        self._log.commit(decide, lambda table, properties: todo[0](table, properties))
        if self._keys:
            self._remove_staged(stamp.txid)

    def _has(self, record: TableRecord, stamp: Stamp) -> bool:
        """Whether the rows of a batch are in the table."""
        if record.published is None:
            return False
        if self._keys:
            return record.published[0] >= stamp.txid  # by whichever attempt: they are the same
        return record.published == (stamp.txid, stamp.attempt)

    def _publishing(self, stamp: Stamp, files: list[RowFile]) -> Work:
        """Return the work of the commit that shows some files."""
        if self._folder.exclusive:  # on an object store a file is there once it was written
            self._refuse_missing(stamp, files)
        if not self._keys:
            return add_files(files)
        with self._file_errors():
            contents = [self._folder.read(file.name) for file in files]
        return merge_rows(parquet_rows(contents, self._columns), self._keys, self._order_by)

    def _refuse_missing(self, stamp: Stamp, files: list[RowFile]) -> None:
        with self._file_errors():
            sizes = [self._folder.size(file.name) for file in files]
        if sizes != [file.size for file in files]:
            # Whoever has taken over since has removed them.
            check_stamp(self.read_head(), stamp, state=self._header.title)
        for file, size in zip(files, sizes, strict=True):
            check_there(file, size, self._header.title)

    def _remove_orphans(self, txid: int) -> None:
        """Remove data files of a batch that has committed, and that the log never had.

        They are of attempts that were lost before they were published, and of tasks that were
        tried again. What cannot be removed now is left to Delta's own vacuum.
        """
        record = self._log.look()
        if self._keys or record is None:
            return
        place = batch_folder(txid)
        folder = self._folder.inside(place)
        with suppress(OSError):
            for name in folder.names():
                if PartName.parse(name) and f"{place}/{name}" not in record.files:
                    folder.remove(name)

    def _remove_staged(self, txid: int) -> None:
        """Remove rows that were put down for batches up to this one, which are merged."""
        folder = self._folder.inside(STAGED)
        with suppress(OSError):
            for text in folder.names():
                name = PartName.parse(text)
                if name is not None and name.txid <= txid:
                    folder.remove(text)

    def has_rows_of(self, txid: int, partition: int) -> bool:
        # Rows that were upserted may all have been replaced since.
        return bool(self._keys) or self._log.rows_of(txid)

    def read_rows(self, last: int, shard: int = 0, shards: int = 1) -> Iterator[pa.Table]:
        from pyarrow import compute as pc

        txid = pc.field(TXID)
        # Where rows were merged, there is no earlier one to show instead of an uncommitted one.
        wanted = txid >= 0 if self._keys else txid <= last
        if shards > 1:
            rest = pc.subtract(txid, pc.multiply(pc.divide(txid, shards), shards))
            wanted = wanted & (rest == shard)
        return self._log.read(self._names, wanted)

    def close(self) -> None:
        self._opened = None

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = (
                f"{self._header.title}: rows cannot be written: {self._secrets.hidden(str(error))}"
            )
            found = OutageError("delta", text) if is_outage(error) else StoreError(text)
            raise found from self._secrets.cause(error)


def table_columns(rows: Schema) -> pa.Schema:
    """Return the columns of the table: those of the rows, then the batch and the attempt."""
    ours = [pa.field(TXID, pa.int64()), pa.field(ATTEMPT, pa.int64())]
    return pa.schema([*arrow_schema(rows), *ours])
