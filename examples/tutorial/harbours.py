"""The ferry with its hours, and the money that each harbour takes: a table beside the stream."""

from pathlib import Path

from hours import tickets, topology
from pyarrow import csv

from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum

__all__ = ["harbours", "tickets", "topology"]

piers = csv.read_csv(Path(__file__).parent / "harbours.csv")  # route, harbour

harbours = (
    tickets.join_static(piers, on="route")
    .group_by("harbour")
    .persistent_aggregate(
        SQLiteState.opaque("ferry.db", table="harbours"),
        Columns(tickets=Count(), income=("fare", Sum())),
    )
)
