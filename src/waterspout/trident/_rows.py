"""Rows of a stream in a plan: the update of a state that keeps them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waterspout._schema import FieldNames, Schema, field_names
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory
from waterspout.trident._tridentstate import TridentState
from waterspout.trident.operations.row_updaters import RowUpdater, UpsertRows
from waterspout.trident.plan.nodes import Update, UpdateWith
from waterspout.trident.plan.plan import Shape

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = ["add_rows"]


def add_rows(
    stream: Stream,
    factory: StateFactory,
    updater: RowUpdater,
    rows: Schema,
    out: FieldNames,
    where: str,
) -> TridentState:
    """Add the state that a stream's rows are appended to, or upserted in."""
    if len(Schema.parse(out)):
        raise TopologyError(f"{where} writes rows and emits none: leave the output fields out")
    if not len(rows):
        raise TopologyError(f"{where} needs a field to write")
    bound = updater.bind(factory, rows)
    keys = rows.select(field_names(updater.keys or ()), where=where)
    shape = Shape.ROWS if bound.keeps_rows else Shape.MAP
    topology = stream.topology
    finisher = updater if shape is Shape.MAP and isinstance(updater, UpsertRows) else None
    name = topology.add_state(bound, shape, finisher=finisher)
    update = topology.add(
        Update,
        f"update of {name}",
        Schema(),
        [stream.project(rows.names).node],
        state=name,
        updating=UpdateWith(rows.names, updater, keys.names or None),
    )
    values = rows.without(keys.names)
    return TridentState(topology, name, keys, values, update.node, rows=rows)
