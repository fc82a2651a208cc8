"""Totals by account: a keyed sum, and where it is kept."""

from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Sum, TridentTopology

PAYMENTS = [("ann", 5), ("bo", 2), ("ann", 7)]

topology = TridentTopology("totals")

payments = topology.new_stream("payments", FixedBatchSpout(["account", "amount"], 2, PAYMENTS))

totals = payments.group_by("account").persistent_aggregate(
    SQLiteState.opaque("totals.db", table="totals"), "amount", Sum(), "total"
)
