"""The recipe of a state of rows in a Delta Lake table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from waterspout._addresses import Secrets, check_url, resolved, shown
from waterspout._schema import Schema
from waterspout.errors import ConfigError, TopologyError
from waterspout.state._base import StateKind
from waterspout.state._local_paths import SentWithItsPath
from waterspout.state._rows import RowsStoreState, rows_layout
from waterspout.state._store import require_package
from waterspout.state.delta._store import DeltaRows, table_columns
from waterspout.state.delta._table import ATTEMPT, TXID
from waterspout.state.files._locations import local_path, location_of

__all__ = ["DeltaState"]

_NOT_SECRET = re.compile(
    r"(?i)region|endpoint|timeout|retries|allow|locking|conditional|virtual|bucket_name|account_name"
)
_FENCED_SINCE = (1, 6)
_NO_KEY = re.compile(r"(?i)\b(array|map|struct|variant|float|double)\b")


@dataclass(frozen=True)
class DeltaState(SentWithItsPath, RowsStoreState):
    """Recipe of a state of rows in a Delta Lake table.

        stream.partition_persist(DeltaState("/lake/orders"), AppendRows())
        stream.partition_persist(DeltaState("s3://lake/orders"), UpsertRows(["id"], order_by="at"))

    The table is made with the first batch. It has the fields of the stream, and `_txid` and
    `_attempt`: which batch wrote the row. Any reader of Delta tables sees each row once.

    Appended rows are written by tasks, and one Delta commit shows all rows of a batch; it is exact
    behind any replayable spout. Upserted rows are merged by the driver, one commit for each batch.

    Args:
        path: A local path, or any URI that `deltalake` knows: `s3://bucket/orders`,
            `abfss://...`, `gs://...`; `${NAME}` in it is taken from the environment.
        storage_options: What `deltalake` needs to open the door there, as in
            `DeltaTable(path, storage_options=...)`. `${NAME}` in a value is taken from the
            environment, of the driver and of the executors. Never shown.
    """

    path: str | Path = field(repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    backend = "delta"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if not self.path:
            raise ConfigError("a Delta state needs the path of its table")
        options = self.storage_options
        texts = [*options, *options.values()] if isinstance(options, Mapping) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError('storage_options are texts by name, {"aws_region": "eu-central-1"}')
        object.__setattr__(self, "storage_options", dict(options))
        if not self._is_local:
            check_url(str(self.path), "URI of a Delta table")
        require_package("deltalake", "deltalake", "delta")
        _refuse_older()

    @property
    def pins_batches(self) -> bool:  # type: ignore[override]
        """A merge cannot be taken back: what it replaced is gone."""
        return bool(self.keys)

    @property
    def title(self) -> str:
        return f"the Delta table {self.path if self._is_local else shown(str(self.path))}"

    @property
    def _is_local(self) -> bool:
        return local_path(str(self.path)) is not None

    def bind_rows(
        self, rows: Schema, keys: tuple[str, ...] = (), order_by: str | None = None
    ) -> Self:
        _refuse_columns(rows, keys, self.title)
        kind = StateKind.TRANSACTIONAL if keys else StateKind.OPAQUE
        return replace(self, rows=rows, keys=tuple(keys), order_by=order_by, kind=kind)

    def store(self) -> DeltaRows:
        address = resolved(str(self.path))
        path = local_path(address)
        options = {name: resolved(value) for name, value in self.storage_options.items()}
        return DeltaRows(
            address if path is None else str(path),
            options,
            self.rows,
            self.kind.value,
            rows_layout(self.rows, self.keys),
            keys=self.keys,
            order_by=self.order_by,
            title=self.title,
            secrets=self._secrets,
        )

    @property
    def _secrets(self) -> Secrets:
        options = self.storage_options.items()
        words = tuple(value for name, value in options if not _NOT_SECRET.search(name))
        return Secrets.of(None if self._is_local else str(self.path), words=words)

    def location(self) -> str:
        return location_of("delta", str(self.path))


def _refuse_older() -> None:
    """Refuse a `deltalake` that would drop the fence from a commit, and commit all the same."""
    import deltalake

    numbers = re.findall(r"\d+", deltalake.__version__)[:2]
    if tuple(map(int, numbers)) < _FENCED_SINCE:
        raise ConfigError(
            f"deltalake {deltalake.__version__} leaves the application transaction out of a commit "
            "that adds files, and that is what keeps two drivers apart. Take 1.6 or newer: "
            "pip install 'waterspout[delta]'"
        )


def _refuse_columns(rows: Schema, keys: tuple[str, ...], title: str) -> None:
    """Refuse fields that cannot be columns of a Delta table, or not be keys of one."""
    for name, kind in rows.require_types(where=title):
        if name.lower() in (TXID, ATTEMPT):
            raise TopologyError(
                f"field {name!r} cannot be a column of {title}: waterspout keeps there which batch "
                "wrote the row. Call the field something else."
            )
        if re.search(r"(?i)\b(void|interval|time|variant)\b", str(kind)):
            raise TopologyError(
                f"field {name!r} is {kind}, which a Delta table does not take from here. Make a "
                "field of another type of it before."
            )
    table_columns(rows)  # which refuses what has no Arrow type
    for name in keys:
        kind = str(rows.type_of(name))
        if _NO_KEY.search(kind):
            raise TopologyError(
                f"{title} cannot be upserted by {name!r}, which is {kind}: whether two of them are "
                "equal depends on who compares. Go by a field of another type, made of it before."
            )
