"""`waterspout check`: what a topology does and promises, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waterspout.cli.kinds import kind_of
from waterspout.cli.loading import load_topology
from waterspout.cli.options import ConfigFile, Settings, Target, read_config
from waterspout.errors import ConfigError

__all__ = ["check"]

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
    kind = kind_of(load_topology(target))
    drawn = None if form is None else kind.draw(conf, form)
    typer.echo(kind.check(conf))
    if graph is None or drawn is None:
        typer.echo(f"checked: {kind.checked}; nothing was run or written")
        return
    graph.write_text(drawn, encoding="utf-8")
    typer.echo(f"checked: {kind.checked}; nothing was run; the graph is in {graph}")


def _format_of(graph: Path) -> str:
    form = _FORMATS.get(graph.suffix.lower())
    if form is None:
        raise ConfigError(
            f"--graph {graph} must end in .mmd (for Mermaid) or .dot (for Graphviz), "
            "which says what to write"
        )
    return form
