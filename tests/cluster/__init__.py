"""One topology on every kind of Spark: embedded, in executors, on a cluster, over Connect."""
