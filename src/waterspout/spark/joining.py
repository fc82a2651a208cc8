"""Joins, merges and packed rows of several streams, as DataFrame operations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waterspout.trident.plan.nodes import Join, Merge, MultiReduce
from waterspout.trident.runtime.joins import STREAM, packed_name, packed_schema

__all__ = ["joined", "merged", "packed"]

_HOW = {
    (True, True): "inner",
    (True, False): "left",
    (False, True): "right",
    (False, False): "full",
}


def merged(node: Merge, frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames under the names of the merged stream."""
    sides = [
        frame.select(
            *(F.col(own).alias(name) for own, name in zip(
                parent.schema.names, node.schema.names, strict=True
            ))
        )
        for parent, frame in zip(node.parents, frames, strict=True)
    ]  # fmt: skip
    return reduce(DataFrame.union, sides)


def joined(node: Join, frames: Sequence[DataFrame]) -> DataFrame:
    """Join frames one after the other; nulls are equal to each other, as in a grouping."""
    made: DataFrame | None = None
    must = False
    for number, frame in enumerate(frames):
        side = _renamed(node, number, frame)
        wanted = not node.optional[number]
        if made is None:
            made, must = _as_left(node, side), wanted
            continue
        keys = range(len(node.keys[0]))
        same = reduce(Column.__and__, [F.col(f"_k{i}").eqNullSafe(F.col(f"_r{i}")) for i in keys])
        made = made.join(side, same, _HOW[must, wanted])
        if not must:
            # Where the left side is never missing its keys stay as they are: Spark then knows
            # that the rows lie right for the next join.
            for i in keys:
                made = made.withColumn(f"_k{i}", F.coalesce(F.col(f"_k{i}"), F.col(f"_r{i}")))
        made = made.drop(*(f"_r{i}" for i in keys))
        must = must or wanted
    assert made is not None
    names = [] if node.preserve else [f"_k{i}" for i in range(len(node.keys[0]))]
    for number, parent in enumerate(node.parents):
        for column, name in enumerate(parent.schema.names):
            if node.preserve or name not in node.keys[number]:
                names.append(_own(number, column))
    pairs = zip(names, node.schema.names, strict=True)
    return made.select(*(F.col(made_name).alias(name) for made_name, name in pairs))


def packed(node: MultiReduce, frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames as rows with columns for each of them."""
    schema = packed_schema(node)
    sides = []
    for number, frame in enumerate(frames):
        sources = {STREAM: F.lit(number)}
        if node.groups is not None:
            sources |= {f"_g{i}": F.col(name) for i, name in enumerate(node.groups[number])}
        for i, name in enumerate(node.fields[number]):
            sources[packed_name(number, i)] = F.col(name)
        nothing = F.lit(None)
        sides.append(
            frame.select(
                *(sources.get(name, nothing).cast(str(kind)).alias(name) for name, kind in schema)
            )
        )
    return reduce(DataFrame.union, sides)


def _renamed(node: Join, number: int, frame: DataFrame) -> DataFrame:
    """Give keys and fields names that no other side has."""
    keys = [F.col(name).alias(f"_r{i}") for i, name in enumerate(node.keys[number])]
    names = node.parents[number].schema.names
    fields = [F.col(name).alias(_own(number, i)) for i, name in enumerate(names)]
    return frame.select(*keys, *fields)


def _as_left(node: Join, side: DataFrame) -> DataFrame:
    for i in range(len(node.keys[0])):
        side = side.withColumnRenamed(f"_r{i}", f"_k{i}")
    return side


def _own(number: int, column: int) -> str:
    return f"_j{number}_{column}"
