"""Ordered batches: transactional topologies, and the coordinator that decides over them."""

from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._bolts import BatchBolt, BatchCollector, BatchContext, Committer
from waterspout.transactional._builder import TransactionalTopology, TransactionalTopologyBuilder
from waterspout.transactional._memory import (
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
)
from waterspout.transactional._spouts import (
    BatchCoordinator,
    BatchEmitter,
    OpaqueEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedTransactionalSpout,
    PartitionEmitter,
    TransactionalSpout,
)

__all__ = [
    "BatchBolt",
    "BatchCollector",
    "BatchContext",
    "BatchCoordinator",
    "BatchEmitter",
    "Committer",
    "MemoryTransactionalSpout",
    "OpaqueEmitter",
    "OpaqueMemoryTransactionalSpout",
    "OpaquePartitionedTransactionalSpout",
    "PartitionCoordinator",
    "PartitionEmitter",
    "PartitionedTransactionalSpout",
    "TransactionAttempt",
    "TransactionalSpout",
    "TransactionalTopology",
    "TransactionalTopologyBuilder",
]
