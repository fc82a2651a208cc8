"""Deduplication in a plan: the update of a hidden state, whose new values are the stream."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from waterspout._schema import FieldNames, Schema, field_names
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory
from waterspout.trident.deduplication.recent import KEYS, VALUES
from waterspout.trident.deduplication.updater import Deduplicate, DeduplicateWithin
from waterspout.trident.plan.nodes import UpdateWith
from waterspout.trident.plan.plan import Shape
from waterspout.trident.windowing.store import OwnStore, require_opaque

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream

__all__ = ["add_deduplication"]

_MILLI = dt.timedelta(milliseconds=1)


def add_deduplication(
    stream: Stream, keys: FieldNames, store: StateFactory | None, within: dt.timedelta | None
) -> Stream:
    """Add a state of the keys that have passed; return the stream of the rows that pass."""
    names = field_names(keys)
    where = f"deduplicate({', '.join(names)})"
    if not names:
        raise TopologyError('deduplicate needs the fields that are the key: deduplicate("id")')
    chosen = stream.schema.select(names, where=where).require_keys(where=where)
    updating, key_columns, values = _updating(stream.schema, chosen, within, where)
    factory: StateFactory
    if store is None:
        factory = OwnStore(stream.topology.next_state(), key_columns, values)
    else:
        factory = require_opaque(store, where, "its keys").bind(key_columns, values)
    made = stream.update(factory, Shape.OWN, key_columns, values, stream.schema, updating)
    passed = made.new_values_stream().name(f"rows that pass {where}")
    stream.topology.rename(passed.node.parents[0], f"{where} in {made.name}")
    return passed


def _updating(
    schema: Schema, keys: Schema, within: Any, where: str
) -> tuple[UpdateWith, Schema, Schema]:
    """Return how the state is updated, and the keys and values that it has."""
    if within is None:
        value = "passed_in" if "passed_in" not in keys.names else "passed_in_batch"
        updating = UpdateWith(schema.names, Deduplicate(keys.names), keys.names)
        return updating, keys, Schema(((value, "bigint"),))
    if not isinstance(within, dt.timedelta) or within < _MILLI:
        raise TopologyError(
            f"{where}: within is a time of at least a millisecond, such as timedelta(hours=1), or "
            f"None for ever, not {within!r}"
        )
    return UpdateWith(schema.names, DeduplicateWithin(keys.names, within // _MILLI)), KEYS, VALUES
