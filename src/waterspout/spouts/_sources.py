"""A spout of any kind as the source of a Trident stream."""

from __future__ import annotations

from typing import Any, TypeAlias

from waterspout._schema import FieldNames, Schema
from waterspout.errors import TopologyError
from waterspout.spouts._base import BatchSpout
from waterspout.spouts._dataframe import DataFrameSource, DataFrameSpout
from waterspout.spouts._emitters import EmittedSource
from waterspout.spouts._emitting import EmittingSource, EmittingSpout
from waterspout.spouts._inference import stream_schema
from waterspout.spouts._pulled import PulledSource
from waterspout.topology._component import DEFAULT_STREAM, Component, LogSpout, Spout
from waterspout.transactional._memory import (
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
)
from waterspout.transactional._spouts import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    TransactionalSpout,
)

__all__ = ["AnySpout", "source_of"]

AnySpout: TypeAlias = (
    BatchSpout
    | Spout
    | EmittingSpout
    | DataFrameSpout
    | TransactionalSpout
    | PartitionedTransactionalSpout
    | OpaquePartitionedTransactionalSpout
)
"""What a Trident stream can begin with."""


def source_of(
    spout: Any, *, topology: str, spout_id: str, out: FieldNames | None = None
) -> BatchSpout:
    """Return a spout as a source of batches; an error says what it lacks.

    `out` names and types the fields, where the spout does not.
    """
    where = f"spout {spout_id!r}"
    own = getattr(spout, "schema", None)
    match spout:
        case type():
            raise TopologyError(
                f"new_stream({spout_id!r}) needs a spout; got the class {spout.__name__}; give an "
                f"object of it: {spout.__name__}(...)"
            )
        case BatchSpout():
            return _as_it_is(spout, out, where)
        case Spout():
            declared = _only_stream(spout, where)
            schema = stream_schema(declared, out=out, own=own, where=where)
            return PulledSource(spout, topology, spout_id, schema)
        case (
            TransactionalSpout()
            | PartitionedTransactionalSpout()
            | OpaquePartitionedTransactionalSpout()
        ):
            declared = _without_attempt(_only_stream(spout, where), where)
            rows = _rows_of(spout)
            schema = stream_schema(declared, out=out, own=own, rows=rows, where=where)
            return EmittedSource(spout, topology, spout_id, schema)
        case EmittingSpout():
            schema = stream_schema(_declared(spout, own, out, where), out=out, own=own, where=where)
            return EmittingSource(spout, topology, spout_id, schema)
        case DataFrameSpout():
            declared = _declared(spout, own, out, where)
            schema = stream_schema(declared, out=out, own=own, where=where)
            return DataFrameSource(spout, spout_id, schema)
        case LogSpout():
            raise TopologyError(
                f"{where} is a LogSpout, which core topologies read; for Trident make it a "
                "PartitionedTransactionalSpout, or use FileSpout"
            )
    raise TopologyError(
        f"new_stream({spout_id!r}) needs a spout; got {spout!r}. It takes a BatchSpout (FileSpout, "
        "RateSpout...), a Spout, an EmittingSpout, a DataFrameSpout, a TransactionalSpout, a "
        "PartitionedTransactionalSpout or an OpaquePartitionedTransactionalSpout."
    )


def _as_it_is(spout: BatchSpout, out: FieldNames | None, where: str) -> BatchSpout:
    schema = spout.schema.require_types(where=where)
    if out is not None:
        wanted = Schema.parse(out)
        fits = len(wanted) == len(schema) and wanted.fill_types(schema.types) == schema
        if not fits:
            raise TopologyError(
                f"{where} has the fields {schema}, and out says {wanted}. It knows its fields: "
                "leave out away, or tell the spout itself."
            )
    return spout


def _only_stream(spout: Component, where: str) -> Schema:
    """Return the fields of the default stream; refuse others, which nobody could read."""
    if isinstance(spout.output_fields, str):
        declared = {DEFAULT_STREAM: Schema.parse(spout.output_fields)}
        others = list(spout.streams or ())
        is_direct = False
    else:
        streams = spout.declared_streams()
        others = [name for name in streams if name != DEFAULT_STREAM]
        default = streams.get(DEFAULT_STREAM)
        is_direct = default is not None and default.direct
        declared = {} if default is None else {DEFAULT_STREAM: Schema.parse([*default.fields])}
    if others or is_direct or not declared:
        found = "a direct stream" if is_direct else ", ".join(map(repr, others)) or "no stream"
        raise TopologyError(
            f"{where} declares {found}; a Trident stream has the default stream of its spout and "
            "no other, and not a direct one. Declare output_fields alone."
        )
    return declared[DEFAULT_STREAM]


def _without_attempt(declared: Schema, where: str) -> Schema:
    if len(declared) < 2:
        raise TopologyError(
            f"{where} declares the fields ({declared}); its first field holds the transaction "
            "attempt, as in a transactional topology, and the stream has those behind it"
        )
    return Schema(declared.fields[1:])


def _rows_of(spout: Any) -> list[Any]:
    """Return the rows of spouts that have them at hand."""
    if isinstance(spout, MemoryTransactionalSpout | OpaqueMemoryTransactionalSpout):
        return [row for rows in spout.rows for row in rows]
    return []


def _declared(spout: Any, own: Any, out: FieldNames | None, where: str) -> Schema:
    """Return the fields of a spout that may leave them to its schema or to `out`."""
    for given in (getattr(spout, "output_fields", None), own, out):
        if given is not None:
            declared = Schema.parse(given)
            if len(declared):
                return declared
    raise TopologyError(
        f'{where} does not say which fields it has: write new_stream(..., out="word string"), or '
        "declare them in its class"
    )
