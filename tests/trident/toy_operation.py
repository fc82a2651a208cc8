"""An operation that waterspout does not have, added as CONTRIBUTING says: tuples only once.

Its node, its method of a stream (here a function), what it does in process, what it becomes on
Spark. Nothing else in the library knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from waterspout.testing._lowerings import lowers_locally
from waterspout.trident._stream import Stream
from waterspout.trident.plan.exchange import Deal, Exchange
from waterspout.trident.plan.nodes import Node


@dataclass(frozen=True, eq=False, kw_only=True)
class Distinct(Node):
    """Each tuple of the batch once."""

    def exchanges(self, layout) -> Sequence[Exchange]:
        return [Exchange(self, Deal.BY_FIELDS, None, self.schema.names)]


def distinct(stream: Stream) -> Stream:
    return stream.topology.add(Distinct, "distinct", stream.schema, [stream.node])


@lowers_locally(Distinct)
def _in_process(node, parents, building):
    rows = list(dict.fromkeys(tuple(row.values()) for row in parents[0].to_pylist()))
    columns = list(zip(*rows, strict=True)) or [()] * len(node.schema)
    fields = parents[0].schema
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)], fields)


def register_on_spark() -> None:
    """Say what it becomes on Spark; a test without Spark need not import that package."""
    from waterspout.spark.lowerings import lowers

    @lowers(Distinct)
    def _on_spark(node, parents, building):
        return parents[0].dropDuplicates()
