"""Orders as they stand, and every change of them: rows that are upserted, and rows appended.

waterspout run examples/upsert_orders.py --until-idle
sqlite3 orders.db 'SELECT id, status, at FROM orders'
sqlite3 orders.db 'SELECT id, status, at FROM changes ORDER BY id, at'

Changes come late and out of order: the one with the greatest `at` is how an order stands. Kill the
run at any moment and start it again: each change is in `changes` once.
"""

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import AppendRows, TridentTopology, UpsertRows

CHANGES = [
    ("o-1", "placed", 1), ("o-2", "placed", 2), ("o-1", "paid", 3),
    ("o-2", "shipped", 7), ("o-3", "placed", 4), ("o-1", "shipped", 8),
    ("o-2", "paid", 5), ("o-1", "delivered", 9), ("o-3", "cancelled", 6),
]  # fmt: skip

topology = TridentTopology("upsert_orders")
changes = topology.new_stream(
    "changes", FixedBatchSpout("id string, status string, at bigint", 3, CHANGES)
)
orders = changes.partition_persist(
    SQLiteState.opaque("orders.db", table="orders"), UpsertRows("id", order_by="at")
)
changes.partition_persist(SQLiteState.opaque("orders.db", table="changes"), AppendRows())

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    for order in ("o-1", "o-2", "o-3"):
        print(order, *orders.get(order))
