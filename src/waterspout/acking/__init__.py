"""At least once: XOR bookkeeping of tuple trees, without clock and without I/O."""

from waterspout.acking.tracker import AckLedger, AckTracker, Decided, TreeReport, Trees

__all__ = ["AckLedger", "AckTracker", "Decided", "TreeReport", "Trees"]
