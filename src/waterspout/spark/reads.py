"""What spouts describe, as DataFrames: one function per kind of read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from waterspout import faults
from waterspout._arrow import ddl_of, table_of_rows
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.spark.kafka_reads import read_kafka
from waterspout.spark.records import read_files
from waterspout.spark.session import SparkRuntime, is_connect
from waterspout.spark.tasks import PartitionTask, TaskSetting
from waterspout.spouts._emission import emitted
from waterspout.spouts._reads import (
    POSITION,
    EmitRead,
    FilesRead,
    FrameRead,
    KafkaRead,
    RangeRead,
    Read,
    RowsRead,
)
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.isolation.letters import ASIDE
from waterspout.trident.operations.contracts import OperationContext

__all__ = ["from_table", "read_frame", "tasks_to_read"]

_TASK_BYTES = 32_000_000
"""A task never reads more than this because of `tasks_to_read`."""


def read_frame(
    runtime: SparkRuntime,
    read: Read,
    conf: Config,
    *,
    attempt: TransactionAttempt,
    tasks: int | None = None,
    with_position: bool = False,
    address: str = "",
    wanted: Sequence[str] | None = None,
) -> DataFrame:
    """Return the rows of a described batch.

    With position: and one more column (`POSITION`), text that says where in its source a row
    stands. With an address: and last (`ASIDE`) the letters of malformed records, under that name.
    `tasks`: how many emitters there are to be, for sources that are read by emitters. `wanted`:
    the fields that somebody reads; others may be left out.
    """
    match read:
        case KafkaRead():
            return read_kafka(
                runtime,
                read,
                conf,
                attempt=attempt,
                tasks=tasks,
                wanted=read.schema.names if wanted is None else wanted,
                with_position=with_position,
                address=address,
            )
        case RowsRead():
            return _rows(runtime, read, with_position=with_position)
        case RangeRead(_, start, end, epoch, rate):
            seconds = F.lit(epoch) + F.col("id") / F.lit(rate)
            columns = [F.col("id").alias("value"), F.timestamp_seconds(seconds).alias("timestamp")]
            position = [F.col("id").cast("string").alias(POSITION)] if with_position else []
            return runtime.spark.range(start, end).select(*columns, *position)
        case FilesRead():
            return _files(runtime, read, conf, with_position=with_position, address=address)
        case EmitRead():
            schema = _with_position(read.schema, with_position=with_position)
            if not read.partitions:
                return _nothing(runtime, schema)
            number = _emitters(runtime, read, tasks)
            setting = TaskSetting.now(conf, attempt.txid, number)
            task = PartitionTask(setting, partial(_emit, read, attempt, number, with_position))
            numbers = runtime.spark.range(0, number, 1, number)
            return numbers.mapInArrow(task, schema.ddl())
        case FrameRead():
            return _frame(runtime, read, with_position=with_position)


def from_table(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table of the driver's as a DataFrame."""
    if table.num_rows == 0 and is_connect(spark):
        # Elsewhere this takes twice as long; here the schema of nothing must be told.
        return spark.createDataFrame([], ddl_of(table.schema).ddl())
    return spark.createDataFrame(table)


def _rows(runtime: SparkRuntime, read: RowsRead, *, with_position: bool) -> DataFrame:
    table = table_of_rows(read.schema, read.rows, where=read.where)
    if with_position:
        table = table.append_column(POSITION, pa.array(read.row_positions(), pa.string()))
    return from_table(runtime.spark, table)


def _files(
    runtime: SparkRuntime, read: FilesRead, conf: Config, *, with_position: bool, address: str
) -> DataFrame:
    if not read.paths:
        schema = _with_position(read.schema, with_position=with_position)
        told = Schema((*schema.fields, (ASIDE, "string"))) if address else schema
        return _nothing(runtime, told)
    position = [_position_in_file(read.format).alias(POSITION)] if with_position else []
    loaded = read_files(runtime.spark, read, conf, beside=position, address=address)
    tasks = tasks_to_read(runtime, conf, read)
    return loaded if tasks is None else loaded.coalesce(tasks)


def _position_in_file(form: str) -> Column:
    path = F.col("_metadata.file_path")
    # Only of Parquet Spark tells which row of the file it is.
    counted = form == "parquet"
    return F.concat_ws("#", path, F.col("_metadata.row_index")) if counted else path


def tasks_to_read(runtime: SparkRuntime, conf: Config, read: FilesRead) -> int | None:
    """Return how many tasks read a batch of files, as its share of the cores; None: all.

    With several batches in flight the cores are busy anyway, and fewer tasks per batch
    combine more before the shuffle and cost less.
    """
    if conf.max_batches == 1 or (cores := runtime.cores) is None:
        return None
    share = -(-cores // conf.max_batches)
    return max(share, -(-read.size_bytes // _TASK_BYTES))


def _emit(
    read: EmitRead,
    attempt: TransactionAttempt,
    tasks: int,
    with_position: bool,
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Emit, on a Python worker, the shares whose numbers are the rows."""
    for batch in batches:
        for index in batch.column(0).to_pylist():
            faults.point("processing", txid=attempt.txid, partition=index)
            yield from emitted(read, conf, attempt, index, tasks, with_position=with_position)


def _emitters(runtime: SparkRuntime, read: EmitRead, tasks: int | None) -> int:
    shares = len(read.partitions)
    tasks = tasks or (runtime.cores if read.is_partitioned else 1) or shares
    # More than there are shares would have nothing to do.
    return min(shares, tasks) if read.is_partitioned else tasks


def _frame(runtime: SparkRuntime, read: FrameRead, *, with_position: bool) -> DataFrame:
    if read.make is None:
        return _nothing(runtime, _with_position(read.schema, with_position=with_position))
    made = read.make(runtime.spark)
    if not isinstance(made, DataFrame):
        raise TopologyError(f"{read.where}: read must return a DataFrame; it gave {made!r}")
    frame: DataFrame = made
    _check_columns(frame, _nothing(runtime, read.schema), read.where)
    position = [F.lit(read.position).alias(POSITION)] if with_position else []
    return frame.select(*read.schema.names, *position)


def _check_columns(frame: DataFrame, wanted: DataFrame, where: str) -> None:
    """Refuse a frame that lacks a declared field, or has it with another type."""
    found = {field.name: field.dataType for field in frame.schema.fields}
    for field in wanted.schema.fields:
        if field.name not in found:
            raise TopologyError(
                f"{where}: read gave a DataFrame without the field {field.name!r} of its schema; "
                f"it has {', '.join(found) or 'no columns'}"
            )
        given, declared = found[field.name].simpleString(), field.dataType.simpleString()
        if given != declared:
            raise TopologyError(
                f"{where}: field {field.name!r} is declared as {declared}, but read gave {given}; "
                f'write {field.name} {given} in the schema, or .cast("{declared}") in read'
            )


def _nothing(runtime: SparkRuntime, schema: Schema) -> DataFrame:
    return runtime.spark.createDataFrame([], schema.ddl())


def _with_position(schema: Schema, *, with_position: bool) -> Schema:
    return Schema((*schema.fields, (POSITION, "string"))) if with_position else schema
