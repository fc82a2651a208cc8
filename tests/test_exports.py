"""What the library shows: `__all__` equals reality, and examples hold."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

from waterspout.errors import MissingDependencyError

SRC = Path(__file__).parents[1] / "src"


# The public surface: what users import, and from where. docs/reference.md tells of the same names.
SURFACE = {
    module: names.split()
    for module, names in {
        "waterspout": """
            BasicBolt Bolt Config DeadLetter Direct FailedException Fields Run Spout TLS
            TopologyBuilder Tuple runs submit
        """,
        "waterspout.events": """
            BatchCancelled BatchCommitted BatchCommitting BatchEmitted BatchFailed
            BatchProcessed BatchProgress BatchSized BatchSizing CommandObeyed CommitStep
            ErrorReported Event Listener
            MessageDeadLettered PartitionReachable PartitionUnreachable ProgressBetweenWaves
            QueryIdle QueryListener QueryProgress QueryProgressed QueryStarted QueryTerminated
            RunEnded RunIdle RunSnapshot ServiceAway ServiceBack
            SpoutPaused StateWritten TreesDecided TuplesCounted WaveFinished WaveProgress
            WaveRetried WaveStarted
        """,
        "waterspout.topology": """
            BasicBolt BasicCollector Bolt ColumnCollector CustomGrouping Direct Fields LogSpout
            OutputCollector Seconds Spout SpoutCollector Topology TopologyBuilder
            TopologyContext Tuple TupleWindow Tuples WindowedBolt
        """,
        "waterspout.transactional": """
            AttemptState BatchBolt BatchBoltDeclarer BatchCollector BatchContext
            BatchCoordinator BatchEmitter Committer MemoryTransactionalSpout
            OpaqueEmitter OpaqueMemoryTransactionalSpout
            OpaquePartitionedTransactionalSpout PartitionCoordinator PartitionEmitter
            PartitionedTransactionalSpout TransactionAttempt TransactionalSpout
            TransactionalTopology TransactionalTopologyBuilder
        """,
        "waterspout.trident": """
            Aggregator AppendRows Assembly Average ChainedAggregatorDeclarer CollectSet Columns
            CombinerAggregator Consumer Count CountDistinct Debug Equals Filter FilterNull
            FirstN FlatMapFunction Function GroupedMultiReducer GroupedStream MapFunction
            MapGet Max MaxBy Min MinBy MultiReducer Negate OperationContext QueryFunction
            ReducerAggregator SlidingCountWindow SlidingDurationWindow SnapshotGet Split
            StateUpdater Stream StringLength Sum TopN TridentCollector TridentState
            TridentTopology TridentTuple TrueFilter TumblingCountWindow
            TumblingDurationWindow TupleCollectionGet UpsertRows WindowSpan aggregator
            arrow_aggregator arrow_function combiner expr grouped_multi_reducer multi_reducer
            nondeterministic pandas_aggregator pandas_function query reducer updater
        """,
        "waterspout.state": """
            BackingMap CachedMap ComparingMap FencedMap Head MapState MemoryMapState
            NonTransactionalMap OpaqueMap OpaqueValue Risk RowsState RowsStore RowsStoreState
            Snapshottable SnapshottableMap Stamp State StateFactory StateKind StoreState
            TransactionalMap TransactionalValue ValueUpdater check_stamp decode_record
            encode_key encode_record takes_over
        """,
        "waterspout.state.cassandra": """
            CassandraState
        """,
        "waterspout.state.delta": """
            DeltaState
        """,
        "waterspout.state.files": """
            FileState
        """,
        "waterspout.state.kafka": """
            KafkaState
        """,
        "waterspout.state.memcached": """
            MemcachedState
        """,
        "waterspout.state.parquet": """
            ParquetState committed_dataset committed_files
        """,
        "waterspout.state.postgres": """
            PostgresState
        """,
        "waterspout.state.redis": """
            RedisState
        """,
        "waterspout.state.sqlite": """
            SQLiteState
        """,
        "waterspout.spouts": """
            BatchPlanner BatchSpout DataFrameSpout EmittingSpout RowsCollector SpoutContext
            SpoutKind
        """,
        "waterspout.spouts.files": """
            FileSpout
        """,
        "waterspout.spouts.fixed": """
            FixedBatchSpout
        """,
        "waterspout.spouts.kafka": """
            KafkaSpout OpaqueKafkaSpout TransactionalKafkaSpout
        """,
        "waterspout.spouts.lines": """
            LinesSpout
        """,
        "waterspout.spouts.rabbitmq": """
            RabbitMQSpout
        """,
        "waterspout.spouts.rabbitmq_streams": """
            OpaqueRabbitMQStreamSpout TransactionalRabbitMQStreamSpout
        """,
        "waterspout.spouts.redis_streams": """
            OpaqueRedisStreamSpout TransactionalRedisStreamSpout
        """,
        "waterspout.spouts.rate": """
            RateSpout
        """,
        "waterspout.metrics": """
            JsonFormatter RunStats show_progress stats_of trace
        """,
        "waterspout.drpc": """
            AsyncDRPCClient DRPCClient DRPCExecutionException DRPCResult DRPCSpout
            LinearDRPCTopologyBuilder ReturnResults
        """,
        "waterspout.sinks": """
            adopt exactly_once
        """,
        "waterspout.errors": """
            AckError BatchError BatchTimeoutError BoltCrash BuildError CommandError ConfigError
            DRPCExecutionException DamagedStoreError DataLossError
            DeadLettersFullError EmitError FailedException FencedError ForeignStoreError
            JavaError LeaseHeldError LeaseLostError MalformedRowError
            MissingDependencyError NewerFormatError
            NotPicklableError NumberTooLargeError OutageError OutsideError ResultError
            RunFailedError SerdeError SourceError SpoutCrash StaleBatchError StateMismatchError
            StateUseError StoreError
            TooManyBadRowsError TopologyError UserCodeError WaterspoutError WorkerLostError
        """,
        "waterspout.faults": """
            BATCH_POINTS ENVIRONMENT_VARIABLE Fault FaultPlan InjectedError KAFKA_POINTS POINTS
            ROWS_POINTS WAVE_POINTS current_plan install point
        """,
        "waterspout.testing": """
            AckFailTracker Batches Fault FaultPlan FaultProxy FeederSpout FixedBatchSpout
            LocalBatches LocalRun LocalWaves MemoryLog RowsConformance SimulatedCrash
            StateConformance check_emitter run_in_process
        """,
    }.items()
}

# No module of these is for users, whatever its name is.
INTERNAL_PACKAGES = (
    *("acking", "cli", "coordination", "proving", "spark", "waves"),
    *("testing/conformance", "topology/windowing"),
    *("trident/isolation", "trident/operations", "trident/plan", "trident/runtime"),
    *("trident/deduplication", "trident/drpc", "trident/windowing"),
)

# Parameters that may be of any type, by name.
OF_ANY_TYPE = {
    **dict.fromkeys(
        ("default", "partitions", "rows", "values", "decode"),
        "values of tuples",
    ),
    **dict.fromkeys(
        ("finisher", "left", "read", "record", "result", "right", "state", "updates", "value"),
        "what an aggregator makes of tuples, or a state keeps",
    ),
    **dict.fromkeys(
        ("known", "last", "metadata", "next_range", "position", "previous", "range"),
        "what a spout itself notes about a batch, as JSON",
    ),
    **dict.fromkeys(("ack_at_once", "msg_id"), "the id that a spout gives a message"),
    **dict.fromkeys(("arguments", "conf", "properties"), "settings of many types, by name"),
    "batch_id": "a txid, or the span of a window; an Aggregator may say for which it is",
    "spark": "a SparkSession of either kind; only waterspout.spark imports pyspark",
}

# Their arguments are those of the store's own class.
FORWARDING = {f"StoreState.{kind}" for kind in ("opaque", "transactional", "non_transactional")}

MODULES = [
    path
    for path in sorted((SRC / "waterspout").rglob("*.py"))
    if path.relative_to(SRC / "waterspout").parts[0] != "cli"  # commands instead of names
]


def name_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_internal(path: Path) -> bool:
    folder = path.parent.relative_to(SRC / "waterspout").as_posix()
    return any(f"{folder}/".startswith(f"{package}/") for package in INTERNAL_PACKAGES)


def test_every_module_is_public_or_private() -> None:
    missing = SURFACE.keys() - {name_of(path) for path in MODULES}
    assert not missing, f"listed as public, but not there: {sorted(missing)}"
    unclear = [
        str(path)
        for path in MODULES
        if name_of(path) not in SURFACE and not is_internal(path) and not path.stem.startswith("_")
    ]
    assert not unclear, "neither in SURFACE nor private by name:\n" + "\n".join(unclear)


def test_the_public_surface_is_the_one_listed() -> None:
    found = {
        name: sorted(declared(path) or []) for path in MODULES if (name := name_of(path)) in SURFACE
    }

    assert found == {name: sorted(names) for name, names in SURFACE.items()}


def test_the_reference_lists_the_public_surface() -> None:
    page = (SRC.parent / "docs" / "reference.md").read_text(encoding="utf-8")
    listed: dict[str, list[str]] = {}
    for line in page.splitlines():
        if heading := re.fullmatch(r"## `([\w.]+)`", line):
            names = listed.setdefault(heading[1], [])
        elif row := re.fullmatch(r"\| `(\w+)` \| .+ \|", line):
            names.append(row[1])

    assert listed == SURFACE


def test_all_exists_and_is_sorted() -> None:
    found = []
    for path in MODULES:
        names = declared(path)
        if names is None:
            found.append(f"{path}:1: no __all__")
        elif names != sorted(names, key=ruff_order):
            found.append(f"{path}:1: sort __all__ (`make format` does)")
        elif len(names) != len(set(names)):
            found.append(f"{path}:1: __all__ has a name twice")

    assert not found, "\n".join(found)


def test_every_exported_name_resolves() -> None:
    missing = [
        f"{path}:1: __all__ lists {name}, which the module does not have"
        for path in MODULES
        if (module := load(path)) is not None
        for name in declared(path) or []
        if not hasattr(module, name)
    ]

    assert not missing, "\n".join(missing)


def test_every_public_definition_is_exported() -> None:
    hidden = [
        f"{path}:{node.lineno}: {node.name} is neither in __all__ nor private"
        for path in MODULES
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and node.name not in (declared(path) or [])
    ]

    assert not hidden, "\n".join(hidden)


def test_examples_in_docstrings_hold() -> None:
    failed = [
        f"{path}:1: see the examples that failed above"
        for path in MODULES
        if ">>> " in path.read_text(encoding="utf-8")
        and (module := load(path)) is not None
        and doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
    ]

    assert not failed, "\n".join(failed)


def test_no_parameter_that_users_see_is_of_any_type() -> None:
    found = {
        f"{module}.{where}({name}: {annotation})"
        for module in SURFACE
        for where, function in signatures(module)
        if where not in FORWARDING
        for name, annotation in function.__annotations__.items()
        if name != "return" and name not in OF_ANY_TYPE and mentions_any(str(annotation))
    }

    assert not found, "say what these take:\n" + "\n".join(sorted(found))


def signatures(name: str) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of a module, and the methods of its classes, that users may call."""
    module = imported(name)
    for exported in module.__all__ if module is not None else ():
        value = getattr(module, exported)
        if isinstance(value, FunctionType):
            yield exported, value
        elif isinstance(value, type):
            for method, inner in vars(value).items():
                function = getattr(inner, "__func__", inner)
                public = not method.startswith("_") or method == "__init__"
                if public and isinstance(function, FunctionType):
                    yield f"{exported}.{method}", function


def mentions_any(annotation: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == "Any"
        for node in ast.walk(ast.parse(annotation, mode="eval"))
    )


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def declared(path: Path) -> list[str] | None:
    """Return the literal value of `__all__`, None if there is none."""
    for node in tree_of(path).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                return list(ast.literal_eval(value))
    return None


def ruff_order(name: str) -> tuple[int, str]:
    """Order as ruff's RUF022 does: constants, classes, then everything else."""
    if len(name) > 1 and name.isupper():
        return 0, name
    return (1 if name[:1].isupper() else 2), name


def load(path: Path) -> ModuleType | None:
    """Import the module of a file; None where what it needs is not installed."""
    return imported(name_of(path))


def imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except MissingDependencyError:
        return None
