"""Windows in a process of its own, to be killed: `python windows_child.py FOLDER`.

Reads FOLDER/in, a file a batch, and gathers the windows in FOLDER/results.db until there is nothing
more. The windows themselves are kept where they are without a store: in the topology's folder.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

from tests.spark.killing import session
from waterspout import Config, submit
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, ReducerAggregator, Sum, TridentTopology, expr


class Together(ReducerAggregator[list]):
    """All values in one list, in the order in which they come."""

    def init(self):
        return []

    def reduce(self, value, tuple):
        return [*value, tuple[0]]


class Texts(ReducerAggregator[list]):
    """All rows in one list, their values as texts."""

    def init(self):
        return []

    def reduce(self, value, tuple):
        return [*value, [str(one) for one in tuple.values]]


def main(folder: Path) -> None:
    topology = TridentTopology("windows")
    lines = topology.new_stream("lines", FileSpout(folder / "in", max_files=1))
    for table, window in {
        "tumbling": lines.tumbling_window(7, "value", Together(), "held array<string>"),
        "sliding": lines.sliding_window(9, 4, "value", Together(), "held array<string>"),
    }.items():
        state = SQLiteState.opaque(folder / "results.db", table=table)
        window.persistent_aggregate(state, "held", Together(), out="all array<array<string>>")
    times = lines.each("value", expr("cast(value as bigint)"), "at bigint")
    totals = Columns(n=Count(), total=("at", Sum()))
    by_event = times.tumbling_window(dt.timedelta(milliseconds=5), totals, event_time="at")
    by_event.persistent_aggregate(
        SQLiteState.opaque(folder / "results.db", table="by_event"),
        ["window_start", "n", "total"],
        Texts(),
        out="all array<array<string>>",
    )
    config = Config(home=str(folder / "home"), max_spout_pending=2, lease_secs=2)
    run = submit(topology, session(folder / "spark.log"), config)
    run.process_all_available(timeout=100)
    run.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
