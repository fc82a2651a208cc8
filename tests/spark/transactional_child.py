"""A transactional topology in a process of its own; its argument is a folder.

Three batches into FOLDER/one.db. Kill points come in the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.transactional.spark_components import build, two_stores
from waterspout import Config, submit
from waterspout.spark.starting import embedded_session

ROWS = [[("a", 0), ("b", 1), ("a", 2)], [("b", 3), ("a", 4), ("c", 5)]]


def main(folder: Path) -> None:
    topology, _ = build("owned", folder, two_stores, ROWS, 1)
    config = Config(home=str(folder / "home"), max_spout_pending=2, lease_secs=2)
    run = submit(topology, embedded_session(folder / "spark.log"), config)
    run.process_all_available(timeout=100)
    run.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
