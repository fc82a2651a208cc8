"""Starting, hearing and ending the demo's child process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from waterspout.cli.demo_layout import LOG
from waterspout.faults import ENVIRONMENT_VARIABLE, FaultPlan

__all__ = ["ChildProcess"]

_END_WITHIN_S = 10.0


class ChildProcess:
    """One run of `demo_child`, in a session of its own so that it can be ended with its JVM."""

    def __init__(self, folder: Path, plan: FaultPlan | None = None) -> None:
        with open(folder / LOG, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "waterspout.cli.demo_child", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(folder, plan),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WITHIN_S)
        if error is not None:
            self._signal(signal.SIGKILL)  # the JVM, too, and at once
            self._process.wait()

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Yield what the process tells, until it ends in whatever way."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # the line that it died in
                yield json.loads(line)

    def wait(self) -> int:
        """Return the exit code; a negative one is the signal that killed it."""
        return self._process.wait()

    def _signal(self, number: int) -> None:
        # The group outlives its leader for as long as the JVM takes to notice.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _environment(folder: Path, plan: FaultPlan | None) -> dict[str, str]:
    temporary, spark = folder / "tmp", folder / "spark"
    for made in (temporary, spark):
        made.mkdir(exist_ok=True)
    given = {k: v for k, v in os.environ.items() if k != ENVIRONMENT_VARIABLE}
    locations = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(spark)}
    # Neither JVM lives long enough for the second compiler to pay for itself.
    options = f"{given.get('JDK_JAVA_OPTIONS', '')} -XX:TieredStopAtLevel=1".strip()
    faults = {} if plan is None else {ENVIRONMENT_VARIABLE: plan.to_json()}
    return {**given, **locations, "JDK_JAVA_OPTIONS": options, **faults}
