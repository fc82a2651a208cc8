"""`waterspout check`: what a topology does and promises, without running it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from waterspout._config import Config
from waterspout.cli.answers import AsJson, print_json
from waterspout.cli.loading import load_topology
from waterspout.cli.options import ConfigFile, Retired, Settings, Target, read_config
from waterspout.coordination.graph_changes import NOTHING_CHANGED, Comparison, compare
from waterspout.coordination.transactions import explain as explain_transactions
from waterspout.coordination.transactions import prepare_batches, stored_batches_graph
from waterspout.errors import ConfigError, TopologyError
from waterspout.serving._describing import kind_of, states
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._ledger import Ledger
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.explain import explain_as
from waterspout.trident.plan.plan import Plan
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
    target: Target,
    config: ConfigFile = None,
    setting: Settings = None,
    graph: GraphFile = None,
    retire: Retired = None,
    against_stored: Annotated[
        bool,
        typer.Option(
            "--against-stored",
            help="Print only what has changed since the last run, and what becomes of it.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a topology; print its plan and what it guarantees. Runs nothing."""
    form = None if graph is None else _format_of(graph)
    conf = read_config(config, setting, retire)
    topology = load_topology(target)
    if against_stored:
        _tell_changes(topology, conf, as_json=as_json)
        return
    drawn = None if form is None else explained(topology, conf, form)
    text = explained(topology, conf)
    if graph is not None and drawn is not None:
        graph.write_text(drawn, encoding="utf-8")
    if as_json:
        print_json(
            {
                "topology": topology.name,
                "kind": kind_of(topology),
                "states": states(_described(topology, conf)),
                "explain": text,
                "graph": graph,
            }
        )
        return
    typer.echo(text)
    looked_at = "fields, names, pickling, sources and stores"
    if isinstance(topology, Topology):
        looked_at = "streams, groupings, names, pickling and the coordination store"
    done = "nothing was run or written" if graph is None else "nothing was run; the graph is in"
    typer.echo(f"checked: {looked_at}; {done}{'' if graph is None else f' {graph}'}")


def explained(topology: Topology | TridentTopology, conf: Config, form: str = "text") -> str:
    """Return the plan and what it promises, or raise what is wrong; runs nothing.

    `form` is text, mermaid or dot; only Trident topologies can be drawn.
    """
    from waterspout.coordination.preflight import prepare
    from waterspout.spark.submit import prepare_bolts

    if isinstance(topology, TridentTopology):
        with closing(prepare(topology, conf)) as prepared:
            text = explain_as(prepared.plan, conf, form)
            return prepared.changes.added_to(text) if form == "text" else text
    if form != "text":
        raise TopologyError(
            "--graph draws Trident topologies; this is one of spouts and bolts, of which check "
            "prints the stages. Leave --graph out."
        )
    # The embedded Spark has as many workers; another one tells when it is there.
    workers = os.cpu_count() or 2
    if isinstance(topology, TransactionalTopology):
        with closing(prepare_batches(topology, conf)) as batches:
            text = explain_transactions(batches.topology, conf, workers)
            return batches.changes.added_to(text)
    store, _, changes = prepare_bolts(topology, conf)
    store.release()
    return changes.added_to(explain_waves(topology, conf, workers))


def _described(topology: Topology | TridentTopology, conf: Config) -> Topology | Plan:
    return topology.plan(conf) if isinstance(topology, TridentTopology) else topology


def _tell_changes(topology: Topology | TridentTopology, conf: Config, *, as_json: bool) -> None:
    """Print what has changed since the last run; exit with 2 if a change is refused."""
    ledger, found = _compared(topology, conf)
    if ledger is not None and not found.refused:
        explained(topology, conf)  # the states must fit, too
    if as_json:
        document = {
            "topology": topology.name,
            "has_run": ledger is not None,
            "next_batch": 1 if ledger is None else ledger.current,
            "refused": len(found.refused),
            "changes": [change.to_json() for change in found.changes],
        }
        print_json(document)
    elif ledger is None:
        typer.echo(f"{topology.name}: has not run here; everything begins with batch 1")
    elif not found.changes:
        typer.echo(f"{topology.name}: nothing has changed since the last run")
    else:
        many = f"{len(found.changes)} change{'s' * (len(found.changes) > 1)}"
        typer.echo(
            f"{topology.name}: {many} since the last run; the next batch is {ledger.current}"
        )
        for line in found.lines():
            typer.echo(line)
    if found.refused:
        raise typer.Exit(2)


def _compared(
    topology: Topology | TridentTopology, conf: Config
) -> tuple[Ledger | None, Comparison]:
    from waterspout.coordination.factory import coordination_store
    from waterspout.coordination.preflight import stored_graph

    if isinstance(topology, TridentTopology):
        store, graph = stored_graph(topology, conf)
    elif isinstance(topology, TransactionalTopology):
        store, graph = stored_batches_graph(topology, conf)
    else:
        store, graph = coordination_store(topology.name, conf), topology.fingerprint()
    try:
        ledger = store.peek()
        if ledger is None:
            return None, NOTHING_CHANGED
        return ledger, compare(ledger, graph, conf.retire)
    finally:
        store.release()


def _format_of(graph: Path) -> str:
    form = _FORMATS.get(graph.suffix.lower())
    if form is None:
        raise ConfigError(
            f"--graph {graph} must end in .mmd (for Mermaid) or .dot (for Graphviz), "
            "which says what to write"
        )
    return form
