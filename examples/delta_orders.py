"""Changes of orders in a lake: all of them in one Delta table, the newest of each in another.

waterspout run examples/delta_orders.py --until-idle
python -c 'import deltalake; print(deltalake.DeltaTable("lake/orders").to_pyarrow_table())'
python -c 'import pandas; print(pandas.read_parquet("lake/archive"))'

Every change is appended to `lake/changes`, and once more to `lake/archive`, plain Parquet files for
those without Delta. `lake/orders` has one row for each order; a change that comes late does not
replace a later one. Kill it anywhere and run it again: each row is there once.
"""

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.delta import DeltaState
from waterspout.state.parquet import ParquetState
from waterspout.trident import AppendRows, TridentTopology, UpsertRows

CHANGES = [
    ("o-1", "placed", 1),
    ("o-2", "placed", 2),
    ("o-1", "shipped", 8),
    ("o-1", "paid", 3),  # comes late
    ("o-3", "placed", 4),
    ("o-2", "paid", 5),
    ("o-3", "cancelled", 6),
]

topology = TridentTopology("delta_orders")
changes = topology.new_stream(
    "changes", FixedBatchSpout("id string, status string, at bigint", 3, CHANGES)
)
changes.partition_persist(DeltaState("lake/changes"), AppendRows())
changes.partition_persist(DeltaState("lake/orders"), UpsertRows("id", order_by="at"))
changes.partition_persist(ParquetState("lake/archive"), AppendRows())

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
