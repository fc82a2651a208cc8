"""Where the demo keeps things in its folder, and the sizes that both its processes know."""

__all__ = ["DATABASE", "HOME", "IN_FLIGHT_MAX", "LOG", "PARTITIONS", "SENTENCES", "TABLE"]

SENTENCES = "sentences"
DATABASE = "counts.db"
TABLE = "word_counts"
HOME = "home"
LOG = "spark.log"
PARTITIONS = 4
IN_FLIGHT_MAX = 3
