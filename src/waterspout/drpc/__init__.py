"""DRPC: functions of a running topology that others call, one argument in, tuples out."""

from waterspout.drpc._client import AsyncDRPCClient, DRPCClient
from waterspout.drpc._exchange import DRPCResult
from waterspout.drpc._linear import LinearDRPCTopologyBuilder
from waterspout.drpc._spout import DRPCSpout, ReturnResults
from waterspout.errors import DRPCExecutionException

__all__ = [
    "AsyncDRPCClient",
    "DRPCClient",
    "DRPCExecutionException",
    "DRPCResult",
    "DRPCSpout",
    "LinearDRPCTopologyBuilder",
    "ReturnResults",
]
