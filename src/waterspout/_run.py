"""`submit`: the way from a described topology to a running one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from waterspout._config import Config, Options, as_config
from waterspout.coordination.run import Run, runs
from waterspout.errors import ConfigError, TopologyError
from waterspout.topology._builder import TopologyBuilder
from waterspout.topology._graph import Topology

if TYPE_CHECKING:
    from waterspout.trident._topology import TridentTopology

__all__ = ["Run", "runs", "submit"]


def submit(
    topology: Topology | TridentTopology,
    spark: Any = None,
    config: Options = None,
    *,
    replace: bool = False,
) -> Run:
    """Start a topology and return its run.

    `spark` is the session to run on, used and never stopped; None makes an embedded local one.
    `config` is a Config, or a dict of its options or of Storm's keys; it may be given in place of
    the session. Everything is checked before anything runs: fields, names, stores, pickling.
    `replace` first stops the run of a topology of this name in this process, if there is one:
    what it had in flight is replayed by the new run. Another process is never stopped.
    """
    _require_topology(topology)
    if isinstance(spark, Config | Mapping):
        if config is not None:
            raise ConfigError(
                "the session comes before the options: submit(topology, spark, config)"
            )
        spark, config = None, spark
    conf = as_config(config)
    from waterspout.spark.submit import start

    if replace:
        for run in runs():
            if run.name == topology.name:
                run.stop()
    attending: list[Callable[[Run], object]] = [_with_functions]
    if conf.traces:
        from waterspout.metrics._traces import tracing

        attending.append(tracing())  # what is missing is found before anything runs
    server = None
    if conf.serve is not None:
        from waterspout.serving import bound

        server = bound(conf)
        attending.append(partial(server.start, topology=topology))
        # The token is the server's alone: options travel to tasks and are shown.
        conf = conf.replace(serve_token=None)

    def attend(run: Run) -> None:
        for each in attending:
            each(run)

    try:
        return start(topology, spark, conf, attend)
    except BaseException:
        if server is not None:
            server.close()
        raise


def _with_functions(run: Run) -> None:
    """Give a run what answers the calls of its DRPC streams; whoever serves them comes after."""
    from waterspout.drpc._functions import trident_functions

    run._functions.update(trident_functions(run))


def _require_topology(given: object) -> None:
    """Refuse what is no topology, and say where one is."""
    from waterspout.trident._topology import TridentTopology

    if isinstance(given, Topology | TridentTopology):
        return
    said = f"submit takes a topology, not {type(given).__name__}"
    if isinstance(given, TopologyBuilder) or hasattr(given, "build_topology"):
        method = "create_topology" if isinstance(given, TopologyBuilder) else "build_topology"
        raise TopologyError(f"{said}: call {method} of the builder, and submit what it returns")
    if isinstance(getattr(given, "topology", None), TridentTopology):
        raise TopologyError(f"{said}: submit its topology, the TridentTopology that it is of")
    if isinstance(given, str):
        raise TopologyError(
            f"{said}: write submit(topology, spark, config); a topology has its name already"
        )
    raise TopologyError(said)
