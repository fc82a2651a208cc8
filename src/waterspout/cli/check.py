"""`waterspout check`: what a topology does and promises, without running it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from waterspout._config import Config
from waterspout.cli.loading import load_topology
from waterspout.cli.options import ConfigFile, Settings, Target, read_config
from waterspout.coordination.transactions import explain as explain_transactions
from waterspout.coordination.transactions import prepare_batches
from waterspout.errors import ConfigError, TopologyError
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.explain import explain_as
from waterspout.waves.explain import explain as explain_waves

__all__ = ["check", "explained"]

GraphFile = Annotated[
    Path | None,
    typer.Option(
        "--graph",
        metavar="OUT.mmd|OUT.dot",
        help="Draw the plan of a Trident topology, for Mermaid or for Graphviz.",
    ),
]

_FORMATS = {".mmd": "mermaid", ".dot": "dot"}


def check(
    target: Target, config: ConfigFile = None, setting: Settings = None, graph: GraphFile = None
) -> None:
    """Check a topology; print its plan and what it guarantees. Runs nothing."""
    form = None if graph is None else _format_of(graph)
    conf = read_config(config, setting)
    topology = load_topology(target)
    drawn = None if form is None else explained(topology, conf, form)
    typer.echo(explained(topology, conf))
    looked_at = "fields, names, pickling, sources and stores"
    if isinstance(topology, Topology):
        looked_at = "streams, groupings, names, pickling and the coordination store"
    if graph is None or drawn is None:
        typer.echo(f"checked: {looked_at}; nothing was run or written")
        return
    graph.write_text(drawn, encoding="utf-8")
    typer.echo(f"checked: {looked_at}; nothing was run; the graph is in {graph}")


def explained(topology: Topology | TridentTopology, conf: Config, form: str = "text") -> str:
    """Return the plan and what it promises, or raise what is wrong; runs nothing.

    `form` is text, mermaid or dot; only Trident topologies can be drawn.
    """
    from waterspout.coordination.preflight import prepare
    from waterspout.spark.submit import prepare_bolts

    if isinstance(topology, TridentTopology):
        with closing(prepare(topology, conf)) as prepared:
            return explain_as(prepared.plan, conf, form)
    if form != "text":
        raise TopologyError(
            "--graph draws Trident topologies; this is one of spouts and bolts, of which check "
            "prints the stages. Leave --graph out."
        )
    # The embedded Spark has as many workers; another one tells when it is there.
    workers = os.cpu_count() or 2
    if isinstance(topology, TransactionalTopology):
        with closing(prepare_batches(topology, conf)) as batches:
            return explain_transactions(batches.topology, conf, workers)
    store, _ = prepare_bolts(topology, conf)
    store.release()
    return explain_waves(topology, conf, workers)


def _format_of(graph: Path) -> str:
    form = _FORMATS.get(graph.suffix.lower())
    if form is None:
        raise ConfigError(
            f"--graph {graph} must end in .mmd (for Mermaid) or .dot (for Graphviz), "
            "which says what to write"
        )
    return form
