"""`waterspout check`: what a topology does and promises, without running it."""

from __future__ import annotations

import typer

from waterspout.cli.loading import load_topology
from waterspout.cli.options import ConfigFile, Settings, Target, read_config
from waterspout.trident.plan.explain import explain

__all__ = ["check"]


def check(target: Target, config: ConfigFile = None, setting: Settings = None) -> None:
    """Check a topology; print its plan and the guarantee of each state. Runs nothing."""
    from waterspout.spark.preflight import prepare

    conf = read_config(config, setting)
    prepared = prepare(load_topology(target), conf)
    typer.echo(explain(prepared.plan, conf))
    prepared.close()
    typer.echo("checked: fields, names, pickling, sources and stores; nothing was run or written")
