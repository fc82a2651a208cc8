"""A Delta table as a driver uses it: what its log says now, and commits that bear our id.

Every commit is made from the version that was looked at last. Delta refuses it if another commit
with our id has come since (`_record.py`), wherever that was made; commits of others (a compaction,
somebody's append) it lets pass, or has us look again. So there is no moment between a look at the
head and the commit in which somebody else could move it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from waterspout._addresses import Secrets
from waterspout._backoff import Backoff
from waterspout.errors import (
    DamagedStoreError,
    ForeignStoreError,
    OutageError,
    StoreError,
)
from waterspout.state._header import StoreHeader
from waterspout.state._row_files import RowFile, with_columns
from waterspout.state.delta._record import (
    APP_ID,
    BATCH,
    TableRecord,
    count_of,
    file_name,
    next_number,
    number_of,
)
from waterspout.state.files._locations import Folder, LocalFolder, is_outage

__all__ = ["ATTEMPT", "HEADS", "TXID", "TableLog", "Work", "add_files", "merge_rows", "remove_from"]

MARK = "waterspout.layout"
"""The table's property that says that it is ours."""

HEADS = "_waterspout"
_READ_TRIES = 20
_COMMIT_TRIES = 50
_PAUSES = Backoff(0.002, 0.5)
TXID, ATTEMPT = "_txid", "_attempt"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Work = Callable[[Any, Any], bool]
"""Makes one commit of a Delta table with some properties; False if there was nothing to do.

The table must stay at the version that it has: what was decided was decided by that one.
"""


class TableLog:
    """The log of one Delta table. Used by one thread at a time."""

    def __init__(
        self,
        uri: str,
        options: Mapping[str, str],
        folder: Folder,
        header: StoreHeader,
        columns: pa.Schema,
        secrets: Secrets,
    ) -> None:
        self._uri = uri
        self._options = dict(options)
        self._folder = folder
        self._heads = folder.inside(HEADS)
        self._header = header
        self._columns = columns
        self._secrets = secrets
        self._table: Any = None
        self._number: int | None = None
        self._record: TableRecord | None = None
        self._checked = ""
        self._swept = False

    def close(self) -> None:
        """Forget what is known of the table."""
        self._table = self._number = self._record = None

    def look(self) -> TableRecord | None:
        """Return the newest record; None where there is no table. Refuses one that is not ours."""
        missing: int | None = None
        with self._errors():
            for _ in range(_READ_TRIES):
                table = self._refreshed()
                if table is None:
                    self._refuse_other_files()
                    self._number = self._record = None
                    return None
                number = table.transaction_version(APP_ID)
                if number is None:
                    raise self._headless(table)
                if number != self._number:
                    try:
                        raw = self._heads.read(file_name(number))
                    except FileNotFoundError:
                        if missing == number:
                            raise self._lost_head(number) from None
                        missing = number  # or it was replaced since: then there is a newer one
                        continue
                    self._record, _ = TableRecord.from_bytes(raw, self._header, number)
                    self._number = number
                self._refuse_other_columns(table)
                return self._record
        raise StoreError(f"{self._header.title} changes faster than it can be read")

    def commit(
        self, decide: Callable[[TableRecord | None], TableRecord | None], work: Work
    ) -> None:
        """Make one commit that replaces the record by what `decide` makes of the newest one.

        `work` is done in the same commit; if it has nothing to do, the record is replaced all the
        same. `decide` may refuse, or return None: then nothing is done. Both are called again, from
        a fresh look, when somebody else's commit was in the way.
        """
        for failures in range(1, _COMMIT_TRIES):
            new = decide(self.look())
            if new is None:
                return
            with self._errors():
                if self._grown():
                    continue
                if self._replaced(new, work):
                    return
            time.sleep(_PAUSES.random_pause_s(failures))
        raise StoreError(f"{self._header.title}: others commit faster than we can. Try again.")

    def rows_of(self, txid: int) -> bool:
        """Whether a file of the table may have rows of a batch."""
        with self._errors():
            files = pa.table(self._fresh().get_add_actions(flatten=True)).to_pylist()
        bounds = [(file.get("min._txid"), file.get("max._txid")) for file in files]
        return any(None in (low, high) or low <= txid <= high for low, high in bounds)

    def read(self, columns: Sequence[str], wanted: Any) -> Iterator[pa.Table]:
        """Yield the rows for which an expression is true."""
        with self._errors():
            dataset = self._fresh().to_pyarrow_dataset()
            wanted_columns = pa.schema([self._columns.field(name) for name in columns])
            # The table gets columns that were added to the state with the next commit.
            there = [name for name in columns if name in dataset.schema.names]
            for batch in dataset.to_batches(columns=there, filter=wanted):
                if batch.num_rows:
                    yield with_columns(pa.Table.from_batches([batch]), wanted_columns)

    def _fresh(self) -> Any:
        table = self._refreshed()
        if table is None:
            raise StoreError(f"{self._header.title} is not there any more")
        return table

    def _replaced(self, new: TableRecord, work: Work) -> bool:
        """Try one commit; return whether it is in the log."""
        from deltalake.exceptions import CommitFailedError

        before = -1 if self._table is None else self._table.version()
        number, old = next_number(self._number), self._number
        self._heads.create()
        content = new.to_bytes(self._header, number)
        self._heads.write(file_name(number), [content])
        try:
            if self._table is None:
                self._create(number)
            else:
                properties = self._properties(number, new)
                if not work(self._table, properties):
                    add_files([])(self._table, properties)
        except CommitFailedError:
            pass  # somebody else's commit was in the way
        except Exception:
            # Whatever went wrong, the commit may have arrived: only the log can tell.
            if self._committed() != number:
                self._heads.remove(file_name(number))
                raise
        if self._committed() != number:
            self._heads.remove(file_name(number))
            return False
        self._make_durable(before)
        self._number, self._record = number, new
        self._sweep(old)
        return True

    def _properties(self, number: int, record: TableRecord) -> Any:
        from deltalake import CommitProperties, Transaction

        head = record.head
        said = "" if head is None else f"{head.stamp}{', committed' * head.committed}"
        transactions = [Transaction(APP_ID, number)]
        return CommitProperties(app_transactions=transactions, custom_metadata={"waterspout": said})

    def _create(self, number: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            DeltaTable.create(
                self._uri,
                self._columns,
                mode="error",
                configuration={MARK: self._header.layout},
                storage_options=self._options or None,
                commit_properties=CommitProperties(app_transactions=[Transaction(APP_ID, number)]),
                raise_if_key_not_exists=False,
            )
        except DeltaError as error:
            if "already exists" in str(error):
                raise CommitFailedError(str(error)) from error
            raise

    def _grown(self) -> bool:
        """Add the columns that the state has got since the table was made; then look again."""
        from deltalake import Schema

        if self._table is None:
            return False
        there = {field.name for field in self._table.schema().fields}
        missing = [name for name in self._columns.names if name not in there]
        if missing:
            fields = Schema.from_arrow(self._columns).fields
            self._table.alter.add_columns([f for f in fields if f.name in missing])
        return bool(missing)

    def _committed(self) -> int | None:
        """Return the number that the log has now."""
        table = self._refreshed()
        return None if table is None else table.transaction_version(APP_ID)

    def _refreshed(self) -> Any:
        """Return the table as it is now; None if there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        if self._table is not None and self._is_still_there():
            try:
                self._table.update_incremental()
            except DeltaError:
                self._table = None  # the log between has been removed: begin at its checkpoint
            else:
                return self._table
        try:
            self._table = DeltaTable(self._uri, storage_options=self._options or None)
        except TableNotFoundError:
            self._table = None
        return self._table

    def _is_still_there(self) -> bool:
        """Whether the version that is known was not removed, table and all, on this machine."""
        if not isinstance(self._folder, LocalFolder):
            return True
        version = Path(self._folder.path, "_delta_log", f"{self._table.version():020d}")
        return version.with_suffix(".json").exists() or any(version.parent.glob(f"{version.name}*"))

    def _refuse_other_columns(self, table: Any) -> None:
        """Refuse a table whose columns somebody has changed; more than ours are no matter."""
        text = table.schema().to_json()
        if text == self._checked:
            return
        from deltalake import Schema

        there = {field.name: field.type for field in table.schema().fields}
        for field in Schema.from_arrow(self._columns).fields:
            if field.name in there and there[field.name] != field.type:
                raise ForeignStoreError(
                    f"{self._header.title}: column {field.name!r} is {there[field.name]}, and this "
                    f"topology writes {field.type}. Use another path."
                )
        self._checked = text

    def _refuse_other_files(self) -> None:
        """Refuse a folder in which something else is than a table: it may be meant for that."""
        others = [name for name in self._folder.names() if not _is_ours(name)]
        if others:
            raise ForeignStoreError(
                f"{self._header.title}: the folder is no Delta table, but has files that "
                f"waterspout did not make, such as {sorted(others)[0]}. Use another path."
            )

    def _headless(self, table: Any) -> Exception:
        if MARK not in table.metadata().configuration:
            return self._header.foreign()
        return DamagedStoreError(
            f"{self._header.title}: the table has lost its head, the application transaction "
            f"{APP_ID!r}: it was replaced, or restored by hand. Restore it from a copy."
        )

    def _lost_head(self, number: int) -> DamagedStoreError:
        return DamagedStoreError(
            f"{self._header.title}: the log names {HEADS}/{file_name(number)}, which is not there. "
            f"Restore the table's folder from a copy, with {HEADS}."
        )

    def _make_durable(self, before: int) -> None:
        """Sync what commits since a version have written, where that is a disk of this machine."""
        if not isinstance(self._folder, LocalFolder):
            return
        log = self._folder.inside("_delta_log")
        for version in range(before + 1, self._table.version() + 1):
            try:
                raw = log.read(f"{version:020d}.json")
            except FileNotFoundError:
                continue  # a checkpoint has it, and somebody has cleaned up already
            actions = [json.loads(line) for line in raw.splitlines() if line.strip()]
            added = [action["add"]["path"] for action in actions if "add" in action]
            for name in (f"_delta_log/{version:020d}.json", *added):
                _sync_file(os.path.join(self._folder.path, name))
        log.sync()
        self._folder.sync()

    def _sweep(self, old: int | None) -> None:
        """Remove heads that no commit can name any more. What cannot be removed is so later."""
        assert self._number is not None
        mine = count_of(self._number)
        numbers = [] if old is None else [old]
        try:
            if not self._swept:
                found = map(number_of, self._heads.names())
                numbers = [number for number in found if number not in (None, self._number)]
            for number in numbers:
                # Not those of the same count: a rival may be about to lose with one.
                if count_of(number) < mine:
                    self._heads.remove(file_name(number))
            self._swept = all(count_of(number) < mine for number in numbers)
        except OSError:
            self._swept = False

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of Delta and of the file system into ours, without secrets."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as error:
            said = self._secrets.hidden(_COLOURS.sub("", str(error)))
            text = (
                f"{self._header.title} cannot be used: {said}. What was being written counts as a "
                "whole or not at all; once the cause is gone, run it again."
            )
            away = is_outage(error if isinstance(error, OSError) else OSError(str(error)))
            found = OutageError("delta", text) if away else StoreError(text)
            raise found from self._secrets.cause(error)


def add_files(files: Sequence[RowFile]) -> Work:
    """Return the work of a commit that adds these files to the table."""
    from deltalake.transaction import AddAction

    def work(table: Any, properties: Any) -> bool:
        now = int(time.time() * 1000)
        actions = [AddAction(file.name, file.size, {}, now, True, file.more) for file in files]
        schema = table.schema()
        table.create_write_transaction(actions, "append", schema, commit_properties=properties)
        return True

    return work


def remove_from(txid: int) -> Work:
    """Return the work of a commit that removes the rows of a batch and later ones.

    By what is in the rows, not by files: somebody may have compacted them since.
    """

    def work(table: Any, properties: Any) -> bool:
        before = table.version()
        table.delete(f"{TXID} >= {int(txid)}", commit_properties=properties)
        return bool(table.version() != before)

    return work


def merge_rows(rows: pa.Table, keys: Sequence[str], order_by: str | None) -> Work:
    """Return the work of a commit that puts rows in place of those with their keys.

    A row stays if its order is above that of the new one; a row without an order is below all.
    """
    same = " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)  # none is null
    later = None
    if order_by is not None:
        column = _quoted(order_by)
        later = f"t.{column} IS NULL OR t.{column} <= s.{column}"

    def work(table: Any, properties: Any) -> bool:
        before = table.version()
        (
            table.merge(
                rows, same, source_alias="s", target_alias="t", commit_properties=properties
            )
            .when_matched_update_all(predicate=later)
            .when_not_matched_insert_all()
            .execute()
        )
        return bool(table.version() != before)

    return work


def _quoted(name: str) -> str:
    return f'"{name}"'  # names of fields have no quotes in them


def _is_ours(name: str) -> bool:
    # A log without a commit: of a table that is being made, or whose maker was killed.
    return name in (HEADS, "_delta_log") or name.startswith(BATCH)


def _sync_file(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # removed since, by a commit of others
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
