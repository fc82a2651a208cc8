"""Exactly-once streams for PySpark: Storm's guarantees on Spark's engine."""

from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._run import Run, runs, submit
from waterspout._tls import TLS
from waterspout.errors import FailedException
from waterspout.topology import BasicBolt, Bolt, Direct, Fields, Spout, TopologyBuilder, Tuple

__all__ = [
    "TLS",
    "BasicBolt",
    "Bolt",
    "Config",
    "DeadLetter",
    "Direct",
    "FailedException",
    "Fields",
    "Run",
    "Spout",
    "TopologyBuilder",
    "Tuple",
    "runs",
    "submit",
]
