"""The same topologies, unchanged, give the same results on every kind of Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cli.test_examples import CORE_COUNTS, TRIDENT
from tests.cluster.everywhere import CASES, LINES
from tests.cluster.faulty import SUMS
from tests.drpc.reach import EXPECTED
from tests.drpc.test_examples import WORDS
from tests.services.spark import ConnectServer, StandaloneCluster
from tests.spark.jvm import executor_settings, submit_args

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
EXECUTORS = "local-cluster[2,1,1024]"
COUNTED = Counter(word for line in LINES for word in line.split())

WANTED = {
    **{name: [tables] * 2 for name, tables in TRIDENT.items()},
    "a state that tasks write": [[(k, *of) for k, of in sorted(SUMS.items())]] * 2,
    "bolts and letters": [sorted(CORE_COUNTS.items()), sorted(CORE_COUNTS.items()), [8, 4]],
    "transactional": [[(3, 19)]] * 2,
    "drpc": WORDS,
    "drpc by bolts": EXPECTED,
    "exactly_once sink": [
        sorted((word, times * n, times * n) for word, n in COUNTED.items()) for times in (1, 2)
    ],
}  # fmt: skip

CHILD = [sys.executable, "-m", "tests.cluster.everywhere"]
ENGINES = ["embedded", "executors", "cluster", "connect", "connect executors", "connect cluster"]
TWICE = ["embedded", "cluster"]
"""Where an example is run again, to see that nothing is counted twice there."""


@pytest.fixture(scope="module", params=ENGINES)
def found(request, tmp_path_factory):
    """What all cases found on one kind of Spark, in a process of its own."""
    folder = tmp_path_factory.mktemp("engine")
    with ExitStack() as stack:
        engine = address_of(request.param, stack)
        with open(folder / "child.log", "wb") as log:
            child = subprocess.Popen(
                [*CHILD, str(folder), engine, "2" if request.param in TWICE else "1"],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_SUBMIT_ARGS": submit_args(executor_settings())},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                child.wait(timeout=380)
            finally:
                with suppress(ProcessLookupError):  # over Connect it has no children
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    assert (folder / "found.json").exists(), (folder / "child.log").read_text()[-3000:]
    return json.loads((folder / "found.json").read_text())


def address_of(engine: str, stack: ExitStack) -> str:
    """Start what is needed, and return how the child is told of it."""
    match engine.split():
        case ["embedded"]:
            return "embedded"
        case ["executors"]:
            return f"master={EXECUTORS}"
        case ["cluster"]:
            return f"master={stack.enter_context(StandaloneCluster()).url}"
        case ["connect"]:
            master = "local[2,4]"
        case ["connect", "executors"]:
            master = EXECUTORS
        case ["connect", "cluster"]:
            master = stack.enter_context(StandaloneCluster()).url
    return f"remote={stack.enter_context(ConnectServer(master, **executor_settings())).url}"


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_same_everywhere(found, case):
    wanted = json.loads(json.dumps(WANTED[case]))
    if case in TRIDENT:
        assert 1 <= len(found[case]) <= 2
        wanted = wanted[: len(found[case])]
    assert found[case] == wanted
