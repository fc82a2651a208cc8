"""Runs the console blocks of pages, as a reader would, and compares what they print.

`python -m tests.docs.console docs/tutorial/count.md ...` prints what each command gives, to be
looked at when a page is written.

A line `$ command` is run by a shell in the root of a copy; the lines below it, up to the next one,
are what it prints, where `...` stands for anything. A run without `--until-idle` is a service: it
goes on beside the commands after it, until the page ends.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import ROOT, blocks

# What they start is started by the tests.
SKIPPED = ("make ", ".venv/bin/spark-class ")
_SQL = re.compile(r"sqlite3 (\S+) '(.*)'", re.S)


@dataclass
class Step:
    """A command and what the page says that it prints."""

    command: str
    wanted: str


@dataclass
class Shell:
    """Runs commands one after the other, in a copy of what the tutorial needs."""

    folder: Path
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    services: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("tutorial", "how_to", "coming_from"):
            shutil.copytree(ROOT / "examples" / name, self.folder / "examples" / name)
        tools = self.folder / ".venv" / "bin"
        tools.mkdir(parents=True)
        for name, module in (("waterspout", "-m waterspout.cli"), ("python", "")):
            script = tools / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            script.chmod(0o755)
        # The root as well: a module of the tests starts Spark's workers (`tests/spark/jvm.py`).
        self.env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.env.pop("WATERSPOUT_HOME", None)
        self.env["COLUMNS"] = "120"

    def run(self, command: str) -> str:
        """Run a command; return what it prints."""
        if exported := re.fullmatch(r"export (\w+)='(.*)'", command, re.S):
            self.env[exported[1]] = exported[2]
            return ""
        if command.startswith("unset "):
            self.env.pop(command.removeprefix("unset "), None)
            return ""
        if query := _SQL.fullmatch(command):
            with closing(sqlite3.connect(self.folder / query[1])) as db:
                return "".join("|".join(map(str, row)) + "\n" for row in db.execute(query[2]))
        if " run " in command and "--until-idle" not in command:
            return self._serve(command)
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.env, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
        if "is served; start one" in done.stderr and self.services:
            time.sleep(0.2)  # a run tells where it is served about once a second
            return self.run(command)
        return done.stdout + done.stderr

    def _serve(self, command: str) -> str:
        service = subprocess.Popen(
            command, shell=True, cwd=self.folder, env=self.env, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.services.append(service)
        address = re.search(r"serve=([\d.]+):(\d+)", command)
        assert address is not None, f"{command} does not say where it is served"
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and service.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((address[1], int(address[2]))) == 0:
                    return ""
            time.sleep(0.1)
        raise TimeoutError(f"{command} is not there after 90 s (exit code {service.poll()})")

    def close(self) -> None:
        """End the services."""
        for service in self.services:
            os.killpg(service.pid, signal.SIGTERM)
            service.wait(60)
        self.services.clear()


def steps(page: Path) -> list[Step]:
    """Return the commands of a page with what they print."""
    found: list[Step] = []
    for block in blocks(page, "console"):
        for line in block.text.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:], ""))
            else:
                found[-1].wanted += line + "\n"
    return found


def matches(wanted: str, found: str) -> bool:
    """Say whether a page's text is what a command has printed; without one, anything is."""
    if not wanted.strip():
        return True
    spaced = "\n".join(line.rstrip() for line in found.splitlines()) + "\n"
    return doctest.OutputChecker().check_output(
        wanted, spaced, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )


def main() -> None:
    """Print what the commands of some pages give."""
    import tempfile

    shell = Shell(Path(tempfile.mkdtemp()) / "copy")
    for name in sys.argv[1:]:
        print(f"=== {name}")
        for step in steps(ROOT / name):
            if step.command.startswith(SKIPPED):
                continue
            print(f"$ {step.command}", flush=True)
            found = shell.run(step.command)
            said = "" if matches(step.wanted, found) else "   <<< not what the page says"
            print(f"{found}{said}", flush=True)
        shell.close()


if __name__ == "__main__":
    main()
