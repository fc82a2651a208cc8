"""A state in a file is the same file wherever its recipe is sent."""

from __future__ import annotations

import pickle

import pytest

from waterspout._schema import Schema
from waterspout.state.delta import DeltaState
from waterspout.state.files import FileState
from waterspout.state.parquet import ParquetState
from waterspout.state.sqlite import SQLiteState

ROWS = Schema.parse("a bigint")
RECIPES = {
    "sqlite": lambda path: SQLiteState.opaque(path, table="t", driver_only=False),
    "rows in sqlite": lambda path: SQLiteState(path, table="t").bind_rows(ROWS),
    "delta": DeltaState,
    "parquet": ParquetState,
    "files": FileState.opaque,
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("path", ["here/x", "./x", "~/x", "/there/x"])
def test_a_task_in_another_folder_means_the_same_file(name, path, tmp_path, monkeypatch):
    driver, task = tmp_path / "driver", tmp_path / "task"
    driver.mkdir(), task.mkdir()
    monkeypatch.chdir(driver)
    monkeypatch.setenv("HOME", str(driver))
    recipe = RECIPES[name](path)
    meant, sent = recipe.location(), pickle.dumps(recipe)

    monkeypatch.chdir(task)
    monkeypatch.setenv("HOME", str(task))

    assert pickle.loads(sent).location() == meant


@pytest.mark.parametrize("path", ["s3://bucket/x", "${DATA}/x"])
def test_what_is_whole_or_from_the_environment_is_sent_as_it_is(path, monkeypatch):
    monkeypatch.setenv("DATA", "/data")

    assert pickle.loads(pickle.dumps(ParquetState(path))).path == path
