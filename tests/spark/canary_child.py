"""Passwords through every backend on a Spark that tells all: event log, UI, logs, closures, errors.

Writes all that anybody could look at into a folder; the test looks for the passwords there.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import cloudpickle, serializers

from waterspout import TLS, Config, submit
from waterspout.coordination.factory import ZOOKEEPER_AUTH, coordination_store
from waterspout.errors import RunFailedError
from waterspout.spark.starting import embedded_session
from waterspout.spouts.rabbitmq import RabbitMQSpout
from waterspout.state.cassandra import CassandraState
from waterspout.state.files import FileState
from waterspout.state.memcached import MemcachedState
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, Function, TridentTopology

ROWS = [["to"], ["be"], ["or"], ["not"], ["to"], ["be"]]
PAGES = ("environment/", "jobs/", "stages/", "storage/", "SQL/", "executors/")
JSON = ("environment", "jobs?status=failed", "jobs", "stages?details=true", "sql?details=true")


class Closures:
    """Notes, in a file, the bytes of whatever is pickled to be sent to workers."""

    def __init__(self, file: Path) -> None:
        self.file = file
        for owner in (cloudpickle, serializers.CloudPickleSerializer):
            self.watch(owner)

    def watch(self, owner: Any) -> None:
        plain = owner.dumps

        def dumps(*given: Any, **options: Any) -> Any:
            made = plain(*given, **options)
            with self.file.open("ab") as file:
                file.write(made)
            return made

        owner.dumps = dumps


class Asks(Function):
    """Fails on a worker as a store does that is not there, with all that its client says."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def execute(self, tuple: Any, collector: Any) -> None:
        self.make().check()

    def output_types(self, inputs: Any) -> list[str]:
        return ["string"]


def states(given: dict[str, Any], password: str, name: str) -> dict[str, Any]:
    """Return a state on each of the servers that are there, with this for a password."""
    redis, postgres, memcached = given["redis"], given["postgres"], given["memcached"]
    user, ca = given["user"], given["ca"]
    return {
        "redis": RedisState.opaque(
            f"rediss://{user}:{password}@{redis}/0?ssl_ca_certs={ca}", prefix=name
        ),
        "postgres": PostgresState.opaque(
            f"postgresql://{user}:{password}@{postgres}/app?sslmode=verify-full&sslrootcert={ca}",
            table=name,
        ),
        "memcached": MemcachedState.opaque(
            memcached, prefix=name, username=user, password=password, tls=TLS(ca)
        ),
    }


def nobodies(password: str) -> dict[str, Callable[[], Any]]:
    """Return what cannot be reached: each backend, each form of an address."""
    return {
        "postgres": lambda: PostgresState.opaque(
            f"postgresql://me:{password}@127.0.0.1:1/x", table="t"
        ),
        "postgres pairs": lambda: PostgresState.opaque(
            f"host=127.0.0.1 port=1 user=me password='{password}'", table="t"
        ),
        "postgres slash": lambda: PostgresState.opaque(
            f"postgresql://me:a/{password}@127.0.0.1:1/x", table="t"
        ),
        "redis": lambda: RedisState.opaque(f"redis://me:{password}@127.0.0.1:1/0", prefix="p"),
        "redis query": lambda: RedisState.opaque(
            f"redis://127.0.0.1:1/0?password={password}", prefix="p"
        ),
        "memcached": lambda: MemcachedState.opaque(
            "127.0.0.1:1", prefix="p", username="me", password=password
        ),
        "cassandra": lambda: CassandraState.opaque(
            "127.0.0.1:1", keyspace="k", table="t", mode="lwt", username="me", password=password
        ),
        "files": lambda: FileState.opaque(f"s3://me:{password}@bucket/x?scheme=nonsense"),
    }


def told(*acts: Callable[[], object]) -> str:
    said = []
    for act in acts:
        try:
            said.append(repr(act()))
        except Exception as error:
            said += traceback.format_exception(error)
            logging.getLogger("waterspout.canary").debug("it failed", exc_info=True)
    return "\n".join(said)


def look_around(password: str) -> str:
    """Return what recipes and spouts say of themselves, and their errors."""
    said = []
    for make in nobodies(password).values():
        said.append(told(make, lambda: make().title, lambda: make().location()))  # noqa: B023
        said.append(told(lambda: make().identity(), lambda: make().check()))  # noqa: B023
    spout = RabbitMQSpout(f"amqp://me:{password}@127.0.0.1:1/v", "q")
    os.environ[ZOOKEEPER_AUTH] = f"me:{password}"
    zookeeper = Config(zookeeper_servers=["127.0.0.1:1"], connect_timeout_secs=0.2)
    said.append(told(lambda: spout, lambda: spout.open({}, Context, None)))
    said.append(told(lambda: coordination_store("words", zookeeper).peek(), lambda: zookeeper))
    return "\n".join(said)


class Context:
    topology_name, this_component_id, this_task_id = "words", "mq", 1


def count(spark: Any, name: str, recipes: dict[str, Any], conf: Config) -> tuple[Any, str]:
    topology = TridentTopology(name)
    words = topology.new_stream("in", FixedBatchSpout("word", 3, ROWS))
    held = {
        backend: words.group_by("word").persistent_aggregate(recipe, Count(), "n")
        for backend, recipe in recipes.items()
    }
    said = "\n".join(topology.explain(conf, format=form) for form in ("text", "mermaid", "dot"))
    run = submit(topology, spark, conf)
    run.process_all_available(timeout=100)
    run.stop()
    said += repr(run) + repr(run.recent_progress)
    found = {backend: [state.get([w]) for w in ("to", "not")] for backend, state in held.items()}
    return found, said


def fail(spark: Any, make: Callable[[], Any], conf: Config) -> str:
    """Run a topology whose tasks fail because of a store; return all that is said of it."""
    topology = TridentTopology("failing")
    words = topology.new_stream("in", FixedBatchSpout("word", 3, ROWS))
    words.each("word", Asks(make), "answer").peek(print)
    run = submit(topology, spark, conf.replace(max_retries=0, outage_secs=0.1))
    try:
        run.process_all_available(timeout=100)
    except RunFailedError as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError("it did not fail")


def pages_of(ui: str, application: str) -> str:
    """Return all pages of Spark's UI."""
    wanted = [f"{ui}/{page}" for page in PAGES]
    wanted += [f"{ui}/SQL/execution/?id={number}" for number in range(12)]
    wanted += [f"{ui}/stages/stage/?id={number}&attempt=0" for number in range(12)]
    wanted += [f"{ui}/jobs/job/?id={number}" for number in range(12)]
    wanted += [f"{ui}/api/v1/applications/{application}/{page}" for page in JSON]
    text = []
    for url in wanted:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                text.append(answer.read().decode(errors="replace"))
        except urllib.error.HTTPError:
            text.append(f"{url}: nothing")
    return "\n".join(text)


def main() -> None:
    folder = Path(sys.argv[1])
    given = json.loads((folder / "given.json").read_text())
    literal = given["literal"]
    logging.basicConfig(filename=folder / "debug.log", level=logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.INFO)  # which writes whole closures in base 64
    (folder / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.task.maxFailures": "1",
        "spark.python.worker.reuse": "true",
    }
    conf = Config(home=str(folder / "home"), commit_in="tasks", state_partitions=1)
    seen: dict[str, str] = {}
    closures = Closures(folder / "closures.environment")
    spark = embedded_session(folder / "spark.log", settings)
    found, seen["environment"] = count(spark, "env", states(given, "${CANARY}", "env"), conf)
    closures.file = folder / "closures.literal"
    again, seen["literal"] = count(spark, "plain", states(given, literal, "plain"), conf)
    seen["failed"] = fail(spark, nobodies(literal)["postgres"], conf)
    seen["around"] = look_around("${CANARY}") + look_around(literal)
    seen["session"] = repr(dict(spark.sparkContext.getConf().getAll()))
    seen["ui"] = pages_of(spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId)
    warehouse = spark.conf.get("spark.sql.warehouse.dir")
    spark.stop()
    for name, text in seen.items():
        (folder / f"{name}.seen").write_text(text)
    result = {"environment": found, "literal": again, "warehouse": warehouse}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
