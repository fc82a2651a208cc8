"""A topology with everything: two spouts, a merge, a join, two states, and a third behind one.

Orders and payments of a shop. What is owed on each order comes of both, merged; customers who paid
in the batch of their order are found by a join; how often the balance of an order changed follows
from the new values of the first state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waterspout.spouts._base import BatchSpout, SpoutKind
from waterspout.state import StateFactory
from waterspout.testing import MemoryLog
from waterspout.trident import Columns, Count, Sum, TridentState, TridentTopology

ORDERS = [
    [("o1", "ann", 500), ("o2", "bob", 250), ("o3", "ann", 100), ("o4", "cid", 900)],
    [("o5", "bob", 70), ("o6", "ann", 30), ("o7", None, 1)],
]
PAYMENTS = [
    [("o1", -500), ("o3", -40), ("o5", -70), ("o3", -60), ("o9", -5)],
    [("o2", -250), ("o6", -10)],
]


@dataclass(frozen=True)
class Shop:
    """The states of the topology."""

    owed: TridentState
    prompt: TridentState
    changes: TridentState

    def found(self) -> dict[str, dict[Any, Any]]:
        """Return what the states hold."""
        orders = sorted({row[0] for part in (*ORDERS, *PAYMENTS) for row in part})
        customers = ["ann", "bob", "cid", None]
        return {
            "owed": _kept(orders, self.owed.multi_get(orders)),
            "prompt": _kept(customers, self.prompt.multi_get(customers)),
            "changes": _kept(orders, self.changes.multi_get(orders)),
        }


def spouts(kind: SpoutKind, take: Any = 2) -> tuple[MemoryLog, MemoryLog]:
    """Return the two sources, some rows of each partition to a batch."""
    orders = MemoryLog("id string, customer string, cents bigint", ORDERS, kind=kind, take=take)
    payments = MemoryLog("id string, cents bigint", PAYMENTS, kind=kind, take=take)
    return orders, payments


def shop(
    sources: tuple[BatchSpout, BatchSpout],
    factories: Sequence[StateFactory],
    name: str = "shop",
) -> tuple[TridentTopology, Shop]:
    """Describe the topology."""
    topology = TridentTopology(name)
    orders = topology.new_stream("orders", sources[0])
    payments = topology.new_stream("payments", sources[1]).filter("cents", lambda c: c is not None)
    owed = (
        topology.merge(orders.project(["id", "cents"]), payments)
        .group_by("id")
        .persistent_aggregate(factories[0], "cents", Sum(), "owed")
    )
    prompt = (
        topology.join(orders, "id", payments, "id", ["id", "customer", "cents", "paid"])
        .group_by("customer")
        .persistent_aggregate(factories[1], Columns(orders=Count(), paid=("paid", Sum())))
    )
    changes = (
        owed.new_values_stream()
        .filter("owed", lambda owed: owed is not None)
        .group_by("id")
        .persistent_aggregate(factories[2], Count(), "changes")
    )
    return topology, Shop(owed, prompt, changes)


def recount(batches: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[Any, Any]]:
    """Work out, from what each committed batch held, what the states must hold."""
    owed: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    prompt: dict[Any, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for txid in sorted(batches):
        orders = _rows(ORDERS, batches[txid]["orders"])
        payments = _rows(PAYMENTS, batches[txid]["payments"])
        for row in [*((order, cents) for order, _, cents in orders), *payments]:
            owed[row[0]] += row[1]
        changes.update({row[0] for row in (*orders, *payments)})
        for order, customer, _ in orders:
            for paid_for, cents in payments:
                if paid_for == order:
                    count, paid = prompt[customer]
                    prompt[customer] = (count + 1, paid + cents)
    return {"owed": dict(owed), "prompt": dict(prompt), "changes": dict(changes)}


def everything_is_read(batches: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether the last batch ends where the sources end, and each began where the last ended."""
    for source, parts in (("orders", ORDERS), ("payments", PAYMENTS)):
        at = [0] * len(parts)
        for txid in sorted(batches):
            ranges = batches[txid][source]["ranges"]
            assert [start for start, _ in ranges] == at, (txid, source)
            at = [end for _, end in ranges]
        if at != [len(rows) for rows in parts]:
            return False
    return True


def _rows(partitions: Sequence[Sequence[Any]], metadata: Any) -> list[Any]:
    ranges = enumerate(metadata["ranges"])
    return [row for number, (a, b) in ranges for row in partitions[number][a:b]]


def _kept(keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    found = zip(keys, values, strict=True)
    return {key: _plain(value) for key, value in found if value is not None}


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value
