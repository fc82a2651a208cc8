"""Ordered batches: transactional topologies, and the coordinator that decides over them."""

from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._bolts import BatchBolt, BatchCollector, BatchContext, Committer
from waterspout.transactional._builder import (
    BatchBoltDeclarer,
    TransactionalTopology,
    TransactionalTopologyBuilder,
)
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
from waterspout.transactional._states import AttemptState

__all__ = [
    "AttemptState",
    "BatchBolt",
    "BatchBoltDeclarer",
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
