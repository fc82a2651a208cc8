"""Numbers counted in a process of its own, to be killed: `python on_error_child.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.killing import session
from waterspout import Config, submit
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, TridentTopology


def parse(text: str) -> int:
    """Fail on what is no number."""
    return int(text)


def main(folder: Path) -> None:
    topology = TridentTopology("replayed")
    lines = topology.new_stream("lines", FileSpout(folder / "in"))
    numbers = lines.each("value", parse, "n bigint", on_error="dead_letter")
    state = SQLiteState.opaque(folder / "totals.db", table="counts")
    numbers.group_by("n").persistent_aggregate(state, Count(), out="count")
    config = Config(home=str(folder / "home"), lease_secs=2)
    run = submit(topology, session(folder / "spark.log"), config)
    run.process_all_available(timeout=250)
    run.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
