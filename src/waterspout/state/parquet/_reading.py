"""Readers of a folder of Parquet files: what its manifest says has committed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from waterspout._arrow import arrow_schema
from waterspout._schema import Schema
from waterspout.errors import StoreError
from waterspout.state._base import StateKind
from waterspout.state._records import RecordTexts
from waterspout.state.files._locations import ArrowFolder, Folder, LocalFolder, open_folder
from waterspout.state.files._log import FileLog
from waterspout.state.parquet._store import MANIFEST

__all__ = ["committed_dataset", "committed_files"]


def committed_files(path: str | Path) -> list[str]:
    """Return the Parquet files that hold the rows of all committed batches, each row once.

    Whatever is being written, and whatever a crash has left: these are whole batches that were
    marked as committed, as of one moment. Needs no topology and writes nothing. Local files are
    given by their paths; others as the file system knows them (`bucket/folder/...`).
    """
    return _committed(path)[1]


def committed_dataset(path: str | Path) -> Any:
    """Return the rows of all committed batches as a `pyarrow.dataset.Dataset`, each row once.

    As `committed_files`, of one moment; `.to_table()` reads them, `.scanner(...)` some of them.
    """
    from pyarrow import dataset

    folder, files, rows = _committed(path)
    filesystem = folder.filesystem if isinstance(folder, ArrowFolder) else None
    schema = arrow_schema(rows)
    return dataset.dataset(files, schema=schema, format="parquet", filesystem=filesystem)


def _committed(path: str | Path) -> tuple[Folder, list[str], Schema]:
    folder = open_folder(str(path), "Parquet state", shared=True)
    log = FileLog(folder.inside(MANIFEST), f"the Parquet files in {path}")
    try:
        manifest = log.load()
    except OSError as error:
        raise StoreError(f"the manifest in {path} cannot be read: {error}") from error
    if manifest is None:
        raise StoreError(f"{path} holds no rows of a topology: it has no {MANIFEST}")
    head = manifest.head
    texts = RecordTexts(StateKind.OPAQUE, str(path))
    names = []
    for key, text in log.records.items():
        (name,) = texts.key(key)
        record = texts.decode(key, text)
        if head is not None and head.holds(record.txid, record.attempt):
            names.append((record.txid, name))
    rows = Schema.parse(manifest.shape.layout.rpartition(" -> ")[2])
    return folder, [_full(folder, name) for _, name in sorted(names)], rows


def _full(folder: Folder, name: str) -> str:
    if isinstance(folder, LocalFolder):
        return os.path.join(folder.path, name)
    assert isinstance(folder, ArrowFolder)
    return f"{folder.path}/{name}"
