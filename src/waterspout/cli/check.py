"""`waterspout check`: what a topology does and promises, without running it."""

from __future__ import annotations

import typer

from waterspout.cli.kinds import kind_of
from waterspout.cli.loading import load_topology
from waterspout.cli.options import ConfigFile, Settings, Target, read_config

__all__ = ["check"]


def check(target: Target, config: ConfigFile = None, setting: Settings = None) -> None:
    """Check a topology; print its plan and what it guarantees. Runs nothing."""
    conf = read_config(config, setting)
    kind = kind_of(load_topology(target))
    typer.echo(kind.check(conf))
    typer.echo(f"checked: {kind.checked}; nothing was run or written")
