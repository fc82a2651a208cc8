"""What is written here in place of methods that Spark's DataFrames, or Storm's streams, have."""

from __future__ import annotations

__all__ = ["GROUPED", "STREAM", "TOPOLOGY"]

_ADD = 'each("a", function, out="b string") adds a field, map(function, out=...) replaces all'
_ALL = (
    'persistent_aggregate(factory, Count(), "n") aggregates all batches, aggregate(Count(), "n") '
    "each by itself"
)
_KEEP = 'project("a", "b") keeps some fields'
_MERGE = "topology.merge(stream, other) makes one stream of several"
_ONCE = "deduplicate(keys) lets each key pass once; CountDistinct() and CollectSet() aggregate"
_SEE = "peek(print) shows each tuple, on the executors; states hold what a run has computed"
_SOME = "apply_assembly(FirstN(n, field)) keeps the first of a batch"
_SPREAD = "parallelism_hint(n) says over how many partitions; shuffle() and partition_by() deal out"
_TIME = (
    'tumbling_window(timedelta(minutes=10), Count(), "n", event_time="at", lag=...) has a '
    "watermark that stays a lag behind"
)
_WHERE = 'filter("n", lambda n: n > 1) or filter(expr("n > 1")) keeps some tuples'
_WRITE = (
    "partition_persist(factory, updater) and persistent_aggregate(factory, aggregator, out) write "
    "to states; submit(topology) runs it"
)

STREAM = {
    "select": _KEEP,
    "drop": f"{_KEEP}: name those that stay",
    "where": _WHERE,
    "with_column": _ADD,
    "with_columns": _ADD,
    "agg": _ALL,
    "count": _ALL,
    "reduce": _ALL,
    "union": _MERGE,
    "union_all": _MERGE,
    "union_by_name": _MERGE,
    "merge": _MERGE,
    "join": "topology.join(stream, fields, other, fields, out) joins streams within each batch, "
    'join_static(dataframe, on="a") adds the fields of a table',
    "with_watermark": _TIME,
    "distinct": _ONCE,
    "drop_duplicates": _ONCE,
    "limit": _SOME,
    "order_by": _SOME,
    "sort": _SOME,
    "repartition": _SPREAD,
    "coalesce": _SPREAD,
    "foreach": f"{_WRITE}; peek(function) is called with each tuple",
    "foreach_batch": f"{_WRITE}; waterspout.sinks.exactly_once is for Spark's foreachBatch",
    "write": _WRITE,
    "write_stream": _WRITE,
    "show": _SEE,
    "collect": _SEE,
    "print_schema": "print(stream.schema)",
    "columns": "fields are the names, schema the types",
    "dtypes": "fields are the names, schema the types",
    "alias": "name(...) names an operation; a field gets its name in out=",
    "submit": "submit(topology) runs it",
}
GROUPED = {
    **dict.fromkeys(("agg", "count", "sum", "min", "max", "avg", "mean", "reduce"), _ALL),
    **dict.fromkeys(
        ("map", "flat_map", "filter", "peek", "project", "select", "where", "group_by"),
        "a group_by is followed by an aggregation; to_stream() gives the stream without groups",
    ),
}
TOPOLOGY = {
    "build": "submit(topology) takes it as it is",
    "submit": "submit(topology) runs it",
    "start": "submit(topology) runs it",
    "set_spout": "new_stream(id, spout) begins a stream; TopologyBuilder is for spouts and bolts",
    "set_bolt": "streams have operations; TopologyBuilder is for spouts and bolts",
}
