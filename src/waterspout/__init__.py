"""Exactly-once streams for PySpark: Storm's guarantees on Spark's engine."""

from waterspout.config import Config
from waterspout.errors import FailedException
from waterspout.run import Run, submit

__all__ = ["Config", "FailedException", "Run", "submit"]
