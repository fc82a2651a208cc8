"""The options that commands share, and the Config they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from waterspout._config import Config
from waterspout.cli.completing import complete_setting, topologies_of
from waterspout.errors import ConfigError

__all__ = [
    "ConfigFile",
    "Home",
    "Master",
    "Remote",
    "Retired",
    "Settings",
    "Target",
    "TopologyArgument",
    "config_at",
    "read_config",
]


class LogFormat(StrEnum):
    """How a command logs."""

    TEXT = "text"
    JSON = "json"


Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]",
        help="A Python file, and the topology in it: a variable, or a function that returns it.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="YAML", help="Options of the run, from a file."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        metavar="KEY=VALUE",
        help="One option, by its Python name or Storm's key; may be repeated, wins over --config.",
        autocompletion=complete_setting,
    ),
]
Retired = Annotated[
    list[str] | None,
    typer.Option(
        "--retire",
        metavar="NAME",
        help="A state (by its table) or a spout that was taken out of the topology and is to go; "
        "may be repeated.",
    ),
]

Home = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="The waterspout home; by default that of a run.", show_default=False
    ),
]
Master = Annotated[
    str | None, typer.Option(help="A Spark master, such as local[4] or spark://host:7077.")
]
Remote = Annotated[
    str | None,
    typer.Option(
        help="A Spark Connect server, such as 'sc://host:15002/;token=${TOKEN}'; ${NAME} is "
        "taken from the environment."
    ),
]


def read_config(
    file: Path | None, settings: Sequence[str] | None, retire: Sequence[str] | None = None
) -> Config:
    """Return the options of a file with single settings on top, and what is to be retired."""
    base = Config() if file is None else Config.from_yaml(file)
    base = base.replace(retire=(*base.retire, *(retire or ())))
    given = dict(_setting(text) for text in settings or ())
    checked, keys = Config.from_dict(given).to_dict(), Config.known_keys()
    return Config.from_dict({**base.to_dict(), **{keys[k]: checked[keys[k]] for k in given}})


def config_at(home: Path | None, file: Path | None, settings: Sequence[str] | None) -> Config:
    """Return the options of a command that looks at what runs elsewhere."""
    conf = read_config(file, settings)
    return conf if home is None else conf.replace(home=str(home))


TopologyArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPOLOGY",
        help="A topology by its name, or FILE[:NAME].",
        show_default=False,
        autocompletion=topologies_of(config_at),
    ),
]


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"-c {text!r} is not KEY=VALUE, for example -c max_spout_pending=4")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"-c {text!r}: the value is not valid YAML; quote it") from error
