"""The recipe of a state of rows in a folder of Parquet files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from waterspout._addresses import Secrets, check_url, shown
from waterspout._arrow import arrow_schema
from waterspout._schema import Schema
from waterspout.errors import ConfigError, TopologyError
from waterspout.state._local_paths import SentWithItsPath
from waterspout.state._rows import RowsStoreState, rows_layout
from waterspout.state.files._locations import local_path, location_of, open_folder, refuse_read_only
from waterspout.state.parquet._store import ParquetRows

__all__ = ["ParquetState"]


@dataclass(frozen=True)
class ParquetState(SentWithItsPath, RowsStoreState):
    """Recipe of a state of rows that are appended to a folder of Parquet files.

        stream.partition_persist(ParquetState("/data/orders"), AppendRows())

    Each batch is a folder, `txid=7`, that readers see as a whole. Which files count is in a
    manifest, `_waterspout`, which `committed_files` and `committed_dataset` read; whoever reads the
    folder itself sees each row once whenever no batch is being written, see docs/lake.md.
    Rows cannot be replaced: to upsert, use `DeltaState` or a database.

    Args:
        path: A local path, or any URI that pyarrow knows: `hdfs://...`,
            `s3://bucket/folder?region=...`; `${NAME}` in it is taken from the environment.
    """

    path: str | Path = field(repr=False)

    backend = "parquet"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if not self.path:
            raise ConfigError("a Parquet state needs the path of its folder")
        if local_path(str(self.path)) is None:
            check_url(str(self.path), "URI of a Parquet state")

    @property
    def title(self) -> str:
        path = str(self.path)
        return f"the Parquet files in {path if local_path(path) else shown(path)}"

    def bind_rows(
        self, rows: Schema, keys: tuple[str, ...] = (), order_by: str | None = None
    ) -> Self:
        if keys:
            raise TopologyError(
                f"{self.title} can only be appended to: a row in a file cannot be replaced. To "
                f"upsert by {', '.join(keys)}, use DeltaState(path) (waterspout.state.delta), or a "
                "database."
            )
        for name in rows.require_types(where=self.title).names:
            if name.lower() == "txid":
                raise TopologyError(
                    f"field {name!r} cannot be a column of {self.title}: the folder of each batch "
                    "is called txid=..., which readers take for a column. Call the field something "
                    "else."
                )
        _refuse_types(rows)
        return super().bind_rows(rows)

    def store(self) -> ParquetRows:
        return ParquetRows(
            open_folder(str(self.path), "Parquet state", shared=True),
            self.rows,
            rows_layout(self.rows),
            title=self.title,
            secrets=Secrets() if local_path(str(self.path)) else Secrets.of(str(self.path)),
        )

    def check(self) -> None:
        path = local_path(str(self.path))
        if path is not None:
            refuse_read_only(path)
        super().check()

    def location(self) -> str:
        return location_of("parquet", str(self.path))


def _refuse_types(rows: Schema) -> None:
    """Refuse fields of types that Parquet files cannot have."""
    arrow_schema(rows)
    for name, kind in rows:
        if "void" in str(kind):
            raise TopologyError(f"field {name!r} is void, and a column of files needs a type")
