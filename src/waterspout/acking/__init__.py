"""At least once: XOR bookkeeping of tuple trees, without clock and without I/O."""

from waterspout.acking.ledger import AckLedger, Trees
from waterspout.acking.tracker import AckTracker, Decided, TreeReport

__all__ = ["AckLedger", "AckTracker", "Decided", "TreeReport", "Trees"]
