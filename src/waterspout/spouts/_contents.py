"""What the driver reads of files themselves: how many rows, and which columns."""

from __future__ import annotations

from waterspout._arrow import ddl_of
from waterspout._schema import Schema
from waterspout.errors import SourceError
from waterspout.spouts._places import Place

__all__ = ["count_rows", "parquet_schema"]


def count_rows(place: Place, name: str, format: str) -> int:
    """Return how many rows a file has: of Parquet and ORC it says so, others are read."""
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            with place.open(name) as file:
                return int(pq.read_metadata(file).num_rows)
        if format == "orc":
            from pyarrow import orc

            with place.open(name) as file:
                return int(orc.ORCFile(file).nrows)
    except (ValueError, OSError) as error:  # what Arrow raises for a file that is none
        raise SourceError(f"{name} cannot be read as {format}: {error}") from error
    lines, last = 0, b"\n"
    with place.open(name) as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")


def parquet_schema(place: Place, name: str) -> Schema:
    """Return the fields of a file of Parquet."""
    import pyarrow.parquet as pq

    with place.open(name) as file:
        return ddl_of(pq.read_schema(file))
