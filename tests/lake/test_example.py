"""The example of the lake: each change once, the newest of each order, though batches fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow import dataset

from tests.soaking import soaked
from waterspout import Config, faults
from waterspout.cli.loading import load_topology
from waterspout.faults import Fault, FaultPlan
from waterspout.state.parquet import committed_dataset
from waterspout.testing import run_in_process

EXAMPLE = Path(__file__).parents[2] / "examples" / "delta_orders.py"
CHANGES = [
    ("o-1", "paid", 3), ("o-1", "placed", 1), ("o-1", "shipped", 8),
    ("o-2", "paid", 5), ("o-2", "placed", 2), ("o-3", "cancelled", 6), ("o-3", "placed", 4),
]  # fmt: skip
ORDERS = [("o-1", "shipped", 8), ("o-2", "paid", 5), ("o-3", "cancelled", 6)]


def rows(table):
    return sorted((r["id"], r["status"], r["at"]) for r in table.to_pylist())


@pytest.mark.parametrize("failing", [soaked(None), 2, *(soaked(n) for n in (1, 3, 4, 5, 6))])
def test_the_example_gives_its_tables_also_if_batches_are_replayed(tmp_path, monkeypatch, failing):
    monkeypatch.chdir(tmp_path)
    if failing is not None:
        points = [("write.after", failing), ("publish.after", failing)]
        plan = [Fault(point, "fail", nth=n) for point, n in points]
        faults.install(FaultPlan(plan))

    run_in_process(load_topology(str(EXAMPLE)), Config(retry_backoff_millis=1))

    lake = tmp_path / "lake"
    assert rows(DeltaTable(lake / "changes").to_pyarrow_table()) == CHANGES
    assert rows(DeltaTable(lake / "orders").to_pyarrow_table()) == ORDERS
    assert rows(dataset.dataset(lake / "archive").to_table()) == CHANGES
    assert rows(committed_dataset(lake / "archive").to_table()) == CHANGES
