"""`waterspout drpc`: call a function of a running topology."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from waterspout._addresses import resolved
from waterspout._config import Config
from waterspout.cli.answers import AsJson, print_json
from waterspout.cli.completing import topologies_of
from waterspout.cli.options import ConfigFile, Home, Settings, config_at
from waterspout.coordination.commands.outside import looked_at
from waterspout.coordination.commands.sights import server_url
from waterspout.errors import ConfigError

__all__ = ["drpc"]


def drpc(
    function: Annotated[
        str, typer.Argument(metavar="FUNCTION", help="Which function.", show_default=False)
    ],
    args: Annotated[
        str, typer.Argument(metavar="[ARGS]", help="Its argument, a text.", show_default=False)
    ] = "",
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY", show_default=False, autocompletion=topologies_of(config_at),
            help="Of which topology, if several of the home are served.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", show_default=False,
            help="The server of a run, such as http://host:4040, in place of those of the home.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.001, show_default=False,
            help="How long to wait; by default as long as the run allows.",
        ),
    ] = None,
    min_txid: Annotated[
        int | None,
        typer.Option(
            metavar="TXID", min=0, show_default=False,
            help="Answer when this batch has committed.",
        ),
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:  # fmt: skip
    """Call a function of a topology that runs with --serve; print the tuples, a line each.

    Where a token is needed it is the option serve_token: -c 'serve_token=${NAME}'.
    """
    from waterspout.drpc import DRPCClient

    conf = config_at(home, config, setting)
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url} is not a server such as http://127.0.0.1:4040")
    token = None if conf.serve_token is None else resolved(conf.serve_token)
    with DRPCClient(url or _served(conf, topology), token) as client:
        answer = client.execute(function, args, timeout=timeout, min_txid=min_txid)
    if as_json:
        print_json({"function": function, "result": list(answer), "txid": answer.txid})
        return
    for values in answer:
        typer.echo(json.dumps(values))


def _served(conf: Config, topology: str | None) -> str:
    """Return where a run of the home, or of ZooKeeper, is served."""
    found = {sight.name: url for sight in looked_at(conf) if (url := server_url(sight))}
    if topology is not None and topology in found:
        return found[topology]
    if topology is None and len(found) == 1:
        return next(iter(found.values()))
    where = f"the home {conf.home_path().absolute()}"
    if conf.zookeeper_servers is not None:
        where = "ZooKeeper"
    if not found:
        raise ConfigError(
            f"no run of {where} is served; start one with waterspout run FILE --serve, or name a "
            "server with --url"
        )
    what = "several runs are served" if topology is None else f"{topology!r} is not served"
    raise ConfigError(f"{what} in {where}: choose one with --topology {' or '.join(sorted(found))}")
