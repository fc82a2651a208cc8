"""`waterspout init`: a new project that runs, with its tests and a notebook."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from waterspout._own_files import private_folder
from waterspout._schema import check_topology_id
from waterspout.cli.answers import AsJson, print_json
from waterspout.errors import ConfigError

__all__ = ["init"]

_SUFFIX = ".template"
_RENAMED = {"gitignore": ".gitignore"}
# What a topology may be called and also a Python project: an installer refuses other ends.
_PROJECT_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def init(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="What the project, its folder and its topology are called.",
            show_default=False,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Make a folder with a topology that runs, its tests, a notebook and some sentences."""
    folder = Path(_checked(name)).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not empty; give a new name, or remove it")
    contents = _contents(name)
    for path, text in contents.items():
        private_folder((folder / path).parent)
        (folder / path).write_text(text, encoding="utf-8")
    if as_json:
        print_json({"project": name, "folder": folder, "files": sorted(contents)})
        return
    typer.echo(f"{name}: a project in {folder}")
    for path in sorted(contents):
        typer.echo(f"  {path}")
    typer.echo("next")
    typer.echo(f"  cd {name}")
    typer.echo("  waterspout run topology.py --until-idle")
    typer.echo("  waterspout state get topology.py the")


def _checked(name: str) -> str:
    check_topology_id(name)
    if _PROJECT_NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name!r} cannot be the name of a project; begin and end it with a letter or a digit"
        )
    return name


def _contents(name: str) -> dict[str, str]:
    """Return the files of a project by their paths."""
    found: dict[str, str] = {}

    def collect(folder: Traversable, above: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                collect(entry, f"{above}{entry.name}/")
            elif entry.name.endswith(_SUFFIX):
                own = entry.name.removesuffix(_SUFFIX)
                text = entry.read_text(encoding="utf-8")
                found[above + _RENAMED.get(own, own)] = text.replace("@NAME@", name)

    collect(files("waterspout.cli") / "project", "")
    return found
