"""One life of a topology that is proved: run it over its stand-ins until its sources are empty.

`waterspout prove` starts it as a process of its own, with a file that says what to run and where.
What may kill it comes in the environment, as for any run (`waterspout.faults`). It ends when its
standard input does: then `prove` is gone.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout._run import submit
from waterspout.cli.failures import paragraph
from waterspout.cli.loading import load_stateful
from waterspout.proving.lives import ANSWER
from waterspout.proving.sources import cut
from waterspout.proving.stand_ins import replaced

__all__ = ["main"]


def main(path: str) -> int:
    """Live once; leave an answer, unless killed before."""
    job = json.loads(Path(path).read_text())
    folder = Path(job["folder"])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    answer: dict[str, Any] = {"error": None}
    try:
        _live(job, folder)
    except TimeoutError as error:
        answer = {"error": str(error), "timed_out": True}
    except Exception as error:
        logging.getLogger(__name__).exception("the life ends")
        answer = {"error": paragraph(error)}
    (folder / ANSWER).write_text(json.dumps(answer))
    return 0 if answer["error"] is None else 1


def _live(job: dict[str, Any], folder: Path) -> None:
    from waterspout.spark.starting import open_session

    topology = replaced(load_stateful(job["target"]), folder)
    cut(topology, job["batches"], folder)
    session = open_session(folder / "spark.log", remote=job["remote"], connect_timeout_secs=60)
    try:
        run = submit(topology, session, Config.from_dict(job["options"]))
        try:
            run.process_all_available(timeout=job["timeout_s"])
        finally:
            run.stop()
    finally:
        session.stop()


def _end_with_parent() -> None:
    os.read(0, 1)  # not by `sys.stdin`: Python does not end while a thread holds its lock
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main(sys.argv[1]))
