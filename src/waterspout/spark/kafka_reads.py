"""Ranges of a Kafka as a DataFrame: tasks read them, and Spark parses values that are JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from waterspout import faults
from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout.spark.records import letter_column, refusal_column
from waterspout.spark.session import SparkRuntime
from waterspout.spark.tasks import PartitionTask, TaskSetting
from waterspout.spouts._kafka_reading import COLUMNS, read_columns, shares_of
from waterspout.spouts._malformed import CORRUPT, OnMalformed
from waterspout.spouts._reads import POSITION, KafkaRead
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident.isolation.letters import ASIDE
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.plan.nodes import Sifted

__all__ = ["read_kafka", "read_values_again"]

_JSON = "_waterspout_json"
_AGAIN_S = 1.0
_MESSAGE = ("topic", "partition", "offset")
_HEADERS = "array<struct<key:string,value:string>>"


def read_kafka(
    runtime: SparkRuntime,
    read: KafkaRead,
    conf: Config,
    *,
    attempt: TransactionAttempt,
    tasks: int | None,
    wanted: Sequence[str],
    with_position: bool,
    address: str,
) -> DataFrame:
    """Return the rows of a batch: of the stream's fields those that are wanted.

    With position: and one more column (`POSITION`). With an address: and last (`ASIDE`) the letters
    of malformed values, under that name.
    """
    parsed = read.value_schema
    fields = [name for name in read.schema.names if name in wanted]
    own = [name for name in read.columns if name in wanted]
    chosen = read.malformed_are(conf)
    raw = _raw_columns(read, own, every=bool(address))
    frame = _raw(runtime, read, conf, attempt, tasks, raw, with_position=with_position)
    position = [POSITION] if with_position else []
    if parsed is None:
        return frame.select(*fields, *position)
    frame = _with_json(frame, parsed)
    bad = F.col(f"{_JSON}.{CORRUPT}").isNotNull()
    letters = []
    if address:
        letter = letter_column(
            F.col(f"{_JSON}.{CORRUPT}"), "json", parsed, address, _position_of_letter()
        )
        letters = [F.when(bad, letter).alias(ASIDE)]
    elif chosen is OnMalformed.FAIL:
        refusal = refusal_column(_told_place(), F.col(f"{_JSON}.{CORRUPT}"), "json", parsed)
        frame = frame.where(F.when(bad, refusal).isNull())
    elif chosen is OnMalformed.DEAD_LETTER:  # put aside when the batch ran; this is another look
        frame = frame.where(~bad)
    columns = [F.col(f"{_JSON}.{n}") if n in parsed.names else F.col(n) for n in fields]
    return frame.select(*columns, *position, *letters)


def _raw_columns(read: KafkaRead, own: Sequence[str], *, every: bool) -> tuple[str, ...]:
    """Return the columns of Kafka's that tasks have to give."""
    if read.value_schema is None:
        return tuple(own)
    if every:  # a letter keeps all of its message
        return COLUMNS.names
    needed = {*own, *_MESSAGE, "value"}
    return tuple(name for name in COLUMNS.names if name in needed)


def _raw(
    runtime: SparkRuntime,
    read: KafkaRead,
    conf: Config,
    attempt: TransactionAttempt,
    tasks: int | None,
    names: Sequence[str],
    *,
    with_position: bool,
) -> DataFrame:
    own = COLUMNS.select(names, where="a Kafka")
    schema = Schema((*own.fields, (POSITION, "string"))) if with_position else own
    if not read.ranges:
        return runtime.spark.createDataFrame([], schema.ddl())
    number = _tasks(runtime, read, conf, tasks)
    setting = TaskSetting.now(conf, attempt.txid, number)
    run = partial(_read, read, attempt, tuple(names), number, with_position)
    numbers = runtime.spark.range(0, number, 1, number)
    return numbers.mapInArrow(PartitionTask(setting, run), schema.ddl())


def _read(
    read: KafkaRead,
    attempt: TransactionAttempt,
    names: Sequence[str],
    tasks: int,
    with_position: bool,
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Read, on a Python worker, the shares whose numbers are the rows."""
    shares = shares_of(read.ranges, tasks)
    task = TaskContext.get()
    if task is not None and task.attemptNumber():
        # Spark tries a task again that has waited in vain: the run is to hear of it soon.
        read = replace(read, timeout_s=min(read.timeout_s, _AGAIN_S))
    for batch in batches:
        for index in batch.column(0).to_pylist():
            faults.point("processing", txid=attempt.txid, partition=index)
            yield from read_columns(read, shares[index], names, with_position=with_position)


def _tasks(runtime: SparkRuntime, read: KafkaRead, conf: Config, tasks: int | None) -> int:
    """Return how many tasks read a batch: its share of the cores, unless somebody has said."""
    if tasks is None:
        cores = runtime.cores or len(read.ranges)
        tasks = -(-cores // conf.max_batches)
    # More than there are ranges would have nothing to do.
    return max(1, min(len(read.ranges), tasks))


def _with_json(frame: DataFrame, parsed: Schema) -> DataFrame:
    """Add the parsed value; its last field has the text of a value that is malformed.

    Spark gives nothing at all for a value that is no object: such a one is malformed too. A
    message without a value is not; its fields are null.
    """
    text = F.col("value").cast("string")
    schema = Schema((*parsed.fields, (CORRUPT, "string")))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    made = F.from_json(text, schema.ddl(), options)
    is_object = F.ltrim(text).startswith("{")
    is_bad = F.col("value").isNotNull() & (made.isNull() | ~is_object)
    corrupt = F.when(is_bad, text).otherwise(made.getField(CORRUPT))
    fields = [made.getField(name).alias(name) for name in parsed.names]
    return frame.withColumn(_JSON, F.struct(*fields, corrupt.alias(CORRUPT)))


def _told_place() -> Column:
    topic, partition, offset = (F.col(name).cast("string") for name in _MESSAGE)
    return F.concat(
        *(F.lit("topic "), topic, F.lit(", partition "), partition, F.lit(", offset "), offset)
    )


def _position_of_letter() -> Column:
    """Return, as text, all of a message but its value: what a letter must keep to be replayed."""
    headers = F.transform(
        "headers",
        lambda each: F.struct(
            each.getField("key").alias("key"), F.base64(each.getField("value")).alias("value")
        ),
    )
    plain = [F.col(name) for name in (*_MESSAGE, "timestamp")]
    coded = [F.base64("key").alias("key"), headers.alias("headers")]
    return F.to_json(F.struct(*plain, *coded), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"})


def read_values_again(
    spark: SparkSession,
    read: KafkaRead,
    node: Sifted,
    letters: Sequence[DeadLetter],
    like: DataFrame,
) -> DataFrame:
    """Return the rows of values that are replayed, in the columns of another frame."""
    assert read.value_schema is not None
    rows = [
        (str(letter.values[0]), letter.failures, letter.first_failed, letter.position)
        for letter in letters
        if letter.values is not None
    ]
    origin = "failures bigint, first_failed double, position string"
    texts = spark.createDataFrame(rows, f"value string, {origin}")
    told = (
        "topic string, partition int, offset bigint, timestamp timestamp, key string, "
        f"headers {_HEADERS}"
    )
    frame = _with_json(texts, read.value_schema).withColumn("m", F.from_json("position", told))
    headers = F.transform(
        "m.headers",
        lambda each: F.struct(
            each.getField("key").alias("key"), F.unbase64(each.getField("value")).alias("value")
        ),
    )
    message = {"key": F.unbase64("m.key"), "headers": headers, POSITION: F.col("position")}
    before = F.struct("failures", "first_failed", "position")
    letter = letter_column(
        F.col(f"{_JSON}.{CORRUPT}"),
        "json",
        read.value_schema,
        node.address,
        F.col("position"),
        before,
    )
    columns = []
    for field in like.schema.fields:
        if field.name == ASIDE:
            made = F.when(F.col(f"{_JSON}.{CORRUPT}").isNotNull(), letter)
        elif field.name in read.value_schema.names:
            made = F.col(f"{_JSON}.{field.name}")
        else:
            made = message.get(field.name, F.col(f"m.{field.name}"))
        columns.append(made.cast(field.dataType).alias(field.name))
    return frame.select(*columns)
