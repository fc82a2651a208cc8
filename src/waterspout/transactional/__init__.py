"""Ordered batches: transactional topologies, and the coordinator that decides over them."""

from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.bolts import BatchBolt, BatchCollector, BatchContext, Committer
from waterspout.transactional.builder import TransactionalTopology, TransactionalTopologyBuilder
from waterspout.transactional.memory import (
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
)
from waterspout.transactional.spouts import (
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
