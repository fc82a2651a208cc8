"""A core topology in a process of its own, to be killed: lines of a folder, or a RabbitMQ queue."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.spark.core_components import Log
from tests.spark.killing import session
from waterspout import Config, TopologyBuilder, submit
from waterspout.spouts.lines import LinesSpout
from waterspout.spouts.rabbitmq import RabbitMQSpout


def main() -> None:
    what, source, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    os.environ["WATERSPOUT_HOME"] = str(folder / "home")
    builder = TopologyBuilder()
    if what == "lines":
        builder.set_spout("source", LinesSpout(source), 2)
        bolt = Log(folder, raises_on=["poison"])
    else:
        builder.set_spout("source", RabbitMQSpout(source, "numbers"))
        bolt = Log(folder, fails_once_in=100)
    builder.set_bolt("log", bolt, 2).shuffle_grouping("source")
    config = Config(
        max_spout_pending=int(os.environ.get("PENDING", "2000")),
        max_replays=2,
        wave_max_tuples=1000,
        lease_secs=2,
    )
    run = submit(builder.create_topology("killed"), session(folder / "spark.log"), config)
    (folder / "running").touch()
    run.process_all_available(timeout=200)
    run.stop()


if __name__ == "__main__":
    main()
