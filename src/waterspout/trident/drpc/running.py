"""Requests through the operations of a DRPC stream, in this process: no Spark job.

The operations are run by the same code that workers run over the rows of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout.trident.drpc.nodes import REQUEST, Completed, DrpcSource
from waterspout.trident.drpc.rewriting import RequestPlan
from waterspout.trident.plan.nodes import Node
from waterspout.trident.runtime.local import LocalBuilding, local_lowering_of, lowers_locally

__all__ = ["InDriver", "Patience", "RequestFailure", "RequestRunner", "pausing"]


_PAUSE_S = 0.005


@dataclass(frozen=True)
class Patience:
    """How long somebody waits: until `deadline`, by `time.monotonic()`."""

    deadline: float

    @property
    def seconds_left(self) -> float:
        """How long that is from now."""
        return self.deadline - time.monotonic()


@dataclass(frozen=True)
class RequestFailure:
    """What went wrong for some of the requests that ran together, and in which operation."""

    error: Exception
    operation: str | None = None


def pausing(deadline: float) -> Callable[[str], None]:
    """Return what waits a little each time that it is called, and raises after the deadline."""

    def pause(why: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(why)
        time.sleep(min(_PAUSE_S, left))

    return pause


class RequestRunner(Protocol):
    """Runs the requests of one function, several at once."""

    @property
    def call(self) -> RequestPlan:
        """The function."""

    def run(self, args: Sequence[str], patience: Patience) -> pa.Table | RequestFailure:
        """Return the rows of the answers, each with its request; or what went wrong."""


class InDriver:
    """Runs requests in this process, on Arrow tables. `waits`: how it waits for a commit."""

    def __init__(
        self,
        call: RequestPlan,
        conf: Config,
        waits: Callable[[float], Callable[[str], None]] = pausing,
    ) -> None:
        self.call = call
        self._conf = conf
        self._waits = waits

    def run(self, args: Sequence[str], patience: Patience) -> pa.Table | RequestFailure:
        """Run the operations one after the other over the rows of all requests."""
        plan, pause = self.call.plan, self._waits(patience.deadline)
        building = LocalBuilding(plan, self._conf, 0, args=tuple(args), pause=pause)
        tables: dict[Node, pa.Table] = {}
        for node in plan.nodes:
            parents = [tables[parent] for parent in node.parents]
            try:
                tables[node] = local_lowering_of(node)(node, parents, building)
            except Exception as error:
                return RequestFailure(error, node.title)
        return tables[self.call.result]


@lowers_locally(DrpcSource)
def _requests(node: DrpcSource, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    columns = [range(len(building.args)), building.args]
    return pa.table([list(column) for column in columns], schema=arrow_schema(node.schema))


@lowers_locally(Completed)
def _completed(node: Completed, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    (table,), schema = parents, arrow_schema(node.schema)
    there = set(table.column(REQUEST).to_pylist())
    made, lower = [table], local_lowering_of(node.of)
    nothing = [arrow_schema(parent.schema).empty_table() for parent in node.of.parents]
    for request in range(len(building.args)):
        if request not in there:
            given = lower(node.of, nothing, building)
            number = pa.repeat(pa.scalar(request, pa.int32()), given.num_rows)
            made.append(given.add_column(0, schema.field(0), number))
    return pa.concat_tables(made).cast(schema)
