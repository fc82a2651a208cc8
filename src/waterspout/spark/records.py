"""Files of records, read by Spark: what is malformed fails the batch, or is beside the rows."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.spouts._malformed import (
    CORRUPT,
    KEPT_MAX,
    MARK,
    RECORD,
    TEXT_MAX,
    OnMalformed,
    letter_of_too_long,
    reader_options,
    why,
)
from waterspout.spouts._reads import FilesRead
from waterspout.trident.isolation.letters import ASIDE, to_aside
from waterspout.trident.plan.nodes import Sifted

__all__ = ["letter_column", "read_again", "read_files", "refusal_column"]

_LINE_MAX = "mapreduce.input.linerecordreader.line.maxlength"


def read_files(
    spark: SparkSession, read: FilesRead, conf: Config, *, beside: Sequence[Column], address: str
) -> DataFrame:
    """Return the rows of files, and columns beside them.

    With an `address`, the last column has the letters of malformed records, under that name.
    """
    chosen = read.malformed_are(conf)
    long = {record.path for record in read.too_long}
    frames = []
    if short := [path for path in read.paths if path not in long]:
        frames.append(_loaded(spark, read, short, chosen, beside, address, {}))
    if long:
        # Spark leaves such records out; the driver has found them, and tells of them.
        skipping = {_LINE_MAX: str(read.max_record_bytes + 1)}
        frames.append(_loaded(spark, read, sorted(long), chosen, beside, address, skipping))
        if address:
            frames.append(_told(spark, read, address, frames[-1]))
    return reduce(DataFrame.union, frames)


def _loaded(
    spark: SparkSession,
    read: FilesRead,
    paths: Sequence[str],
    chosen: OnMalformed,
    beside: Sequence[Column],
    address: str,
    more: dict[str, str],
) -> DataFrame:
    fields = read.schema.names
    checks = read.format in ("json", "csv") and chosen in (
        OnMalformed.FAIL,
        OnMalformed.DEAD_LETTER,
    )
    options, schema = {**read.options, **more}, read.schema
    if checks:
        mode = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        options = {**reader_options(read.options), **more, **mode}
        schema = Schema((*schema.fields, (CORRUPT, "string")))
    reader = spark.read.format(read.format).schema(schema.ddl()).options(**options)
    # These are names, not patterns: a[1].txt is not a1.txt.
    names = [re.sub(r"([\\*?\[\]{}])", r"\\\1", path) for path in paths]
    frame = reader.load(names)
    letters = [F.lit(None).cast("string").alias(ASIDE)] if address else []
    if checks:
        bad = F.col(CORRUPT).isNotNull()
        if address:
            letters = [F.when(bad, _letter(read, address)).alias(ASIDE)]
        elif chosen is OnMalformed.FAIL:
            frame = frame.where(F.when(bad, _refusal(read)).isNull())
        else:  # put aside when the batch ran; this is another look at its files
            frame = frame.where(~bad)
    return frame.select(*fields, *beside, *letters)


def _refusal(read: FilesRead) -> Column:
    """Return what raises an error that tells of a record.

    It names all fields, so that Spark reads them all: else what is malformed would depend on what
    the topology reads.
    """
    fields = F.to_json(F.struct(*read.schema.names))
    return refusal_column(F.input_file_name(), F.col(CORRUPT), read.format, read.schema, fields)


def refusal_column(
    place: Column, text: Column, format: str, schema: Schema, *named: Column
) -> Column:
    """Return what raises an error that tells of a record, and where it stands."""
    record = {
        "path": place,
        "text": F.substring(text, 1, TEXT_MAX),
        "format": F.lit(format),
        "fields": F.lit(str(schema)),
    }
    told = F.to_json(F.struct(*(value.alias(name) for name, value in record.items())))
    return F.raise_error(F.concat(F.lit(MARK), told, F.lit(" "), *named))


def _letter(read: FilesRead, address: str, origin: Column | None = None) -> Column:
    return letter_column(
        F.col(CORRUPT), read.format, read.schema, address, F.input_file_name(), origin
    )


def letter_column(
    text: Column,
    format: str,
    schema: Schema,
    address: str,
    position: Column,
    origin: Column | None = None,
) -> Column:
    """Return the text of a letter of a malformed record; `origin`: the letter it was before."""
    now = F.lit(time.time())
    fits = F.length(text) <= KEPT_MAX
    first = {"failures": F.lit(1), "first_failed": now, "position": position}
    if origin is not None:
        first = {name: origin.getField(name) for name in first}
        first["failures"] = first["failures"] + 1
    letter = {
        "failed_in": F.lit(address),
        "fields": F.lit(str(RECORD)),
        "content": F.when(fits, F.to_json(F.array(text))),
        "looks": F.when(~fits, F.substring(text, 1, 200)),
        "error": F.lit(why(format, schema)),
        "last_failed": now,
        **first,
    }
    named = F.struct(*(value.alias(name) for name, value in letter.items()))
    return F.to_json(F.struct(named.alias("letter")), {"ignoreNullFields": "false"})


def _told(spark: SparkSession, read: FilesRead, address: str, like: DataFrame) -> DataFrame:
    """Return rows of which only the letter is set, for the records that are too long."""
    letters = [letter_of_too_long(address, one, read.max_record_bytes) for one in read.too_long]
    texts = spark.createDataFrame(pa.table({ASIDE: [to_aside(letter) for letter in letters]}))
    empty = [F.lit(None).cast(f.dataType).alias(f.name) for f in like.schema.fields[:-1]]
    return texts.select(*empty, ASIDE)


def read_again(
    spark: SparkSession, node: Sifted, letters: Sequence[DeadLetter], like: DataFrame
) -> DataFrame:
    """Return the rows of records that are replayed, in the columns of another frame."""
    read = node.reader
    assert isinstance(read, FilesRead)
    found = [letter for letter in letters if letter.values is not None]
    rows = [
        (str(letter.values[0]), letter.failures, letter.first_failed, letter.position)  # type: ignore[index]
        for letter in found
    ]
    origin = "failures bigint, first_failed double, position string"
    texts = spark.createDataFrame(rows, f"record string, {origin}")
    schema = Schema((*read.schema.fields, (CORRUPT, "string")))
    options = {**reader_options(read.options), "columnNameOfCorruptRecord": CORRUPT}
    options = {k: v for k, v in options.items() if k.lower() not in ("header", "multiline")}
    options["mode"] = "PERMISSIVE"
    if read.format == "text":
        made = F.struct(F.col("record").alias(read.schema.names[0]), _none("string", CORRUPT))
    elif read.format == "json":
        made = F.from_json("record", schema.ddl(), options)
    elif read.format == "csv":
        made = F.from_csv(F.col("record"), schema.ddl(), options)
    else:
        raise TopologyError(f"records of {read.format} cannot be read again")
    before = F.struct("failures", "first_failed", "position")
    flat = texts.select(made.alias("made"), before.alias("o")).select("made.*", "o")
    letter = F.when(F.col(CORRUPT).isNotNull(), _letter(read, node.address, F.col("o")))
    good = flat.withColumn(ASIDE, letter)
    own = {*read.schema.names, ASIDE}
    beside = {f.name: f.dataType for f in like.schema.fields}
    return good.select(
        *(
            F.col(name) if name in own else F.col("o.position").cast(kind).alias(name)
            for name, kind in beside.items()
        )
    )


def _none(kind: str, name: str) -> Column:
    return F.lit(None).cast(kind).alias(name)
