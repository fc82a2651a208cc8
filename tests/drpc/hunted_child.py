"""A word count that is served, to be killed: `python -m tests.drpc.hunted_child FOLDER`.

Counts FOLDER/in, a file a batch, and writes the address of its server to FOLDER/url.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.spark.killing import session
from waterspout import Config, submit
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, MapGet, Split, TridentTopology


def main(folder: Path) -> None:
    topology = TridentTopology("hunted")
    counts = (
        topology.new_stream("lines", FileSpout(folder / "in", max_files=1))
        .each("value", Split(), "word")
        .group_by("word")
        .persistent_aggregate(SQLiteState.opaque(folder / "counts.db", "counts"), Count(), "count")
    )
    asked = topology.new_drpc_stream("counts").each("args", Split(), "word")
    asked.state_query(counts, "word", MapGet(), "count").project("count")
    config = Config(
        home=str(folder / "home"), serve="127.0.0.1:0", lease_secs=2, max_spout_pending=2
    )
    run = submit(topology, session(folder / "spark.log"), config)
    (folder / "url.new").write_text(str(run.server_url))
    os.replace(folder / "url.new", folder / "url")
    run.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
