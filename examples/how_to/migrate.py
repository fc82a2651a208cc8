"""Once, with the query stopped: the topology goes on where the checkpoint ends."""

from query_as_topology import word_count

from waterspout.sinks import adopt


def migrate(folder: str, checkpoint: str) -> int:
    """Hand the states and the position over; return the txid that the topology begins with."""
    return adopt(checkpoint, word_count(folder))
