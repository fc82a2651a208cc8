"""What a Delta log says of the rows of a file, so that readers can pass over it."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["stats_of"]

_COLUMNS = 32  # of which Delta's readers look at the statistics, as a rule
_LONGEST = 32  # characters of a text: of a longer one nothing is said


def stats_of(rows: pa.Table) -> str:
    """Return number of rows, and the least and greatest value and the nulls of simple columns.

    >>> stats_of(pa.table({"id": [2, 1, None]}))
    '{"numRecords":3,"minValues":{"id":1},"maxValues":{"id":2},"nullCount":{"id":1}}'
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names[:_COLUMNS]:
        column = rows.column(name)
        if not _is_simple(column.type):
            continue
        nulls[name] = column.null_count
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            continue  # which is above all numbers to some readers, and below them to others
        bounds = pc.min_max(column).as_py()
        ends = _written(bounds["min"]), _written(bounds["max"])
        if None not in ends:
            least[name], greatest[name] = ends
    stats = {
        "numRecords": rows.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }
    return json.dumps(stats, separators=(",", ":"))


def _is_simple(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_string(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )


def _written(value: Any) -> Any:
    """Return a value as it stands in the log; None if it cannot stand there exactly."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{_utc(value)}Z"
    if isinstance(value, date):
        return value.isoformat()
    return value


def _utc(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
