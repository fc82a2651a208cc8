"""`waterspout ui`: the page, in a process of its own; and how a run has one beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from waterspout.cli.answers import AsJson, print_json
from waterspout.cli.options import ConfigFile, Home, Settings, config_at
from waterspout.state._store import require_package

__all__ = ["PageBeside", "require_page", "ui"]

_END_S = 5.0


def ui(
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Where to listen; beyond loopback with a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Which port; 0 for any that is free.")
    ] = 8080,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", show_default=False,
            help="A run that is served elsewhere, such as http://host:4040; may be repeated.",
        ),
    ] = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", hidden=True, help="End when stdin is closed.")
    ] = False,
    as_json: AsJson = False,
    home: Home = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:  # fmt: skip
    """Show all topologies of a home, or of a ZooKeeper, in a browser.

    Only this machine can open the page, unless --host names another address: then the option
    serve_token is needed, and the page asks for it.
    """
    require_page()
    conf = config_at(home, config, setting)
    from waterspout.ui._page_server import PageServer

    page = PageServer(conf, host, port, [url.rstrip("/") for url in server or ()])
    if as_json:
        print_json({"url": page.url, "where": page.where})
    else:
        typer.echo(f"{page.url} shows the topologies of {page.where}; Ctrl-C ends it")
    if until_eof:
        page.close_when(sys.stdin.buffer.read)
    try:
        page.run()
    except KeyboardInterrupt:
        return


def require_page() -> None:
    """Say what is missing for a page, if something is."""
    require_package("nicegui", "nicegui", "ui")


class PageBeside:
    """The page of a run, in a process that ends with this one, however this one ends."""

    def __init__(
        self,
        url: str,
        config: Path | None,
        settings: Sequence[str] | None,
        told: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        options = [] if config is None else ["--config", str(config)]
        options += [part for text in settings or () for part in ("-c", text)]
        self._told, self._warn = told, warn
        self._child = subprocess.Popen(
            [sys.executable, "-m", "waterspout.cli", "ui", "--json", "--until-eof", "--port", "0",
             "--server", url, *options],
            stdin=subprocess.PIPE,  # never written to: it is closed when this process is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the run, which ends the page
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="waterspout-page", daemon=True)
        self._reader.start()

    def __enter__(self) -> PageBeside:
        return self

    def __exit__(self, *error: object) -> None:
        """End the page."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._reader.join()  # it comes to the end of both pipes
        for pipe in (self._child.stdout, self._child.stderr):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        line = self._child.stdout.readline()
        if line:
            self._told(json.loads(line)["url"])
            self._child.stderr.read()  # so that it never waits for us
        else:
            said = self._child.stderr.read().strip().splitlines()
            self._warn(f"there is no page: {said[-1] if said else 'its process has ended'}")
