"""deduplicate in a process of its own, to be killed: `python deduplicate_child.py FOLDER`.

Reads FOLDER/in, a file a batch, and counts what passes in FOLDER/ever.db and FOLDER/within.db until
there is nothing more. The keys are kept where they are without a store: in the topology's folder.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

from tests.spark.killing import session
from waterspout import Config, submit
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, TridentTopology


def main(folder: Path) -> None:
    topology = TridentTopology("deduplicated")
    lines = topology.new_stream("lines", FileSpout(folder / "in", max_files=1))
    for name, within in {"ever": None, "within": dt.timedelta(days=1)}.items():
        state = SQLiteState.opaque(folder / f"{name}.db", table="passed")
        rows = lines.deduplicate("value", within=within).each(
            "value", lambda v: v, out="what string"
        )
        rows.group_by("what").persistent_aggregate(state, Count(), out="n")
    config = Config(home=str(folder / "home"), max_spout_pending=2, lease_secs=2)
    run = submit(topology, session(folder / "spark.log"), config)
    run.process_all_available(timeout=100)
    run.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
