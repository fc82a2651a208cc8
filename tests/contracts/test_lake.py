"""Rows in Delta tables and in Parquet files, run through the kit.

`read` is a reader of the format who has never heard of waterspout.
"""

from __future__ import annotations

import os
import shutil
from itertools import count

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import dataset, parquet
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from waterspout._arrow import arrow_schema
from waterspout.state.delta import DeltaState
from waterspout.state.delta import _store as delta_store
from waterspout.state.delta._storage import store_folder
from waterspout.state.files._locations import ArrowFolder
from waterspout.state.parquet import ParquetState, committed_dataset
from waterspout.state.parquet import _state as parquet_state
from waterspout.testing import RowsConformance


def listed(table):
    return [tuple(row.values()) for row in table.to_pylist()]


class LakeSuite(RowsConformance):
    """A folder for each state."""

    recipe_of = None

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root, self.numbers = tmp_path, count()

    def make_recipe(self, rows):
        return self.recipe_of(self.root / f"table {next(self.numbers)}").bind_rows(rows)

    def grown(self, recipe, rows):
        return self.recipe_of(recipe.path).bind_rows(rows)


class TestDelta(LakeSuite):
    """Through `deltalake`'s reader."""

    recipe_of = DeltaState

    def read(self, recipe, fields):
        if not DeltaTable.is_deltatable(recipe.path):
            return []
        return listed(DeltaTable(recipe.path).to_pyarrow_table(columns=list(fields)))

    def lose_rows(self, recipe):
        DeltaTable(recipe.path).delete()
        return True

    def occupy(self, recipe):
        write_deltalake(recipe.path, pa.table({"id": [1]}))
        return True


@pytest.mark.soak
class TestDeltaUpserts(TestDelta):
    """Rows that are merged by key, of which nothing can be taken back."""

    test_equal_rows_are_as_many_as_they_were = None  # they are one
    test_to_dataframe_gives_committed_rows_only = None  # a merged batch is seen at once

    def make_recipe(self, rows):
        path = self.root / f"table {next(self.numbers)}"
        return DeltaState(path).bind_rows(rows, ("id",))

    def grown(self, recipe, rows):
        return DeltaState(recipe.path).bind_rows(rows, ("id",))

    def lose_rows(self, recipe):
        return False  # all rows of a batch may have been replaced


@pytest.mark.soak
class TestDeltaElsewhere(TestDelta):
    """Files by way of `deltalake`'s own file system, as on an object store: nothing is synced."""

    @pytest.fixture(autouse=True)
    def _elsewhere(self, monkeypatch):
        def folder(uri, options):
            os.makedirs(uri, exist_ok=True)  # which an object store does not need
            return store_folder(uri, options)

        monkeypatch.setattr(delta_store, "table_folder", folder)


class TestParquet(LakeSuite):
    """Through a reader of the folder, who passes over names with an underscore."""

    recipe_of = ParquetState

    def read(self, recipe, fields):
        schema = arrow_schema(recipe.rows.select(fields, where="here"))
        try:
            return listed(dataset.dataset(recipe.path, schema=schema).to_table())
        except FileNotFoundError:
            return []

    def lose_rows(self, recipe):
        shutil.rmtree(f"{recipe.path}/txid=1")
        return True

    def occupy(self, recipe):
        (self.root / "mine").mkdir()
        parquet.write_table(pa.table({"id": [1]}), self.root / "mine" / "a.parquet")
        (self.root / "mine").rename(recipe.path)
        return True


@pytest.mark.soak
class TestParquetElsewhere(TestParquet):
    """On a file system of pyarrow's, as on HDFS and S3: files are moved one by one."""

    @pytest.fixture(autouse=True)
    def _elsewhere(self, monkeypatch):
        def folder(path, what, *, shared):
            filesystem = SubTreeFileSystem("/", LocalFileSystem())
            return ArrowFolder(filesystem, path.lstrip("/"), f"arrow {path}")

        monkeypatch.setattr(parquet_state, "open_folder", folder)


@pytest.mark.soak
class TestManifest(TestParquet):
    """Through the manifest: a batch is there when it has committed, whatever the folder shows."""

    def read(self, recipe, fields):
        if not os.path.exists(recipe.path):
            return []
        return listed(committed_dataset(recipe.path).to_table(columns=list(fields)))


del LakeSuite  # not to be collected itself
