"""Ordered batches: attempts, the ledger that survives, and the coordinator that decides."""

from waterspout.transactional.attempt import TransactionAttempt

__all__ = ["TransactionAttempt"]
