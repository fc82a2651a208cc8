"""Ranges of a Kafka, read in this process: a source of the in-process engine."""

from __future__ import annotations

import datetime as dt
import json
from base64 import b64decode
from typing import Any

import pyarrow as pa

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout.spouts._kafka_reading import (
    COLUMNS,
    letter_position,
    message_position,
    read_columns,
)
from waterspout.spouts._malformed import OnMalformed, letter_of_record, malformed
from waterspout.spouts._reads import POSITION, KafkaRead
from waterspout.testing._json import rows_of_record
from waterspout.trident.isolation.letters import ASIDE, to_aside

__all__ = ["read_messages", "replayed_value"]


def read_messages(read: KafkaRead, conf: Config, *, with_position: bool, address: str) -> pa.Table:
    """Return the rows of a batch; with an address, last the letters of malformed values."""
    more = [(POSITION, "string")] if with_position else []
    more += [(ASIDE, "string")] if address else []
    wanted = arrow_schema(Schema((*read.schema.fields, *more)))
    if read.value_schema is None:
        names = list(read.columns)
        batches = read_columns(read, read.ranges, names, with_position=with_position)
        return pa.Table.from_batches(batches, schema=wanted)
    chosen, rows = read.malformed_are(conf), list[dict[str, Any]]()
    for batch in read_columns(read, read.ranges, COLUMNS.names, with_position=False):
        for message in batch.to_pylist():
            found, bad = _value_fields(read.value_schema, message["value"])
            if bad and chosen is OnMalformed.FAIL:
                raise malformed(_place(message), _text(message), "json", read.value_schema)
            if bad and chosen is OnMalformed.DEAD_LETTER:
                if address:
                    letter = letter_of_record(
                        address, _text(message), letter_position(message), "json", read.value_schema
                    )
                    rows.append({ASIDE: to_aside(letter)})
                continue
            rows.append({**message, **found, POSITION: _place(message)})
    return pa.Table.from_pylist(rows, wanted)


def _value_fields(schema: Schema, value: bytes | str | None) -> tuple[dict[str, Any], bool]:
    """Return the fields of a value, and whether it is malformed; then there are nulls in them."""
    nothing = dict.fromkeys(schema.names)
    if value is None:
        return nothing, False
    try:
        text = value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        return nothing, True
    if not text.lstrip().startswith("{"):
        return nothing, True
    rows, bad = rows_of_record(text, schema)
    return dict(zip(schema.names, rows[0], strict=True)), bad


def replayed_value(read: KafkaRead, letter: DeadLetter) -> dict[str, Any] | None:
    """Return the row of a letter that is replayed; None if its value is still malformed."""
    assert read.value_schema is not None
    assert letter.values is not None
    found, bad = _value_fields(read.value_schema, letter.values[0])
    if bad:
        return None
    kept = json.loads(letter.position or "{}")
    when, headers = kept["timestamp"], kept["headers"]
    message = {
        **kept,
        "timestamp": None if when is None else dt.datetime.fromisoformat(when),
        "key": _bytes(kept["key"]),
        "headers": headers and [{**each, "value": _bytes(each["value"])} for each in headers],
        POSITION: letter.position,
    }
    return {**message, **found}


def _text(message: dict[str, Any]) -> str:
    return str(message["value"].decode("utf-8", "replace"))


def _place(message: dict[str, Any]) -> str:
    return message_position(message["topic"], message["partition"], message["offset"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
