"""States of rows in a folder of Parquet files, and how to read them."""

from waterspout.state.parquet._reading import committed_dataset, committed_files
from waterspout.state.parquet._state import ParquetState

__all__ = ["ParquetState", "committed_dataset", "committed_files"]
