"""Lives of a topology: processes that are started, killed at a point, and started again.

Each life is `python -m waterspout.cli.prove_child` with a small file that says what to do. All
lives of a trial have the same folder, in which the topology has its home and its stand-ins, and the
same plan of faults, each of which fires once and leaves a token.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout._own_files import private_folder
from waterspout.errors import RunFailedError, SourceError
from waterspout.faults import ENVIRONMENT_VARIABLE, FaultPlan
from waterspout.proving.comparing import Content, compare
from waterspout.proving.sources import SHARES, stored_shares
from waterspout.proving.subject import HOME, Subject
from waterspout.proving.trials import Passing, Trial, noting, passings_of
from waterspout.proving.verdicts import TrialResult

__all__ = ["ANSWER", "Lives", "Reference", "Setting"]

ANSWER = "answer.json"
"""What a life leaves in its folder when it ends by itself: nothing wrong, or what was."""

_CHILD = "waterspout.cli.prove_child"
_LIVES_MAX = 6
_NOTES = "passed.jsonl"
_END_WITHIN_S = 10.0


@dataclass(frozen=True)
class Setting:
    """What is the same in all lives."""

    target: str
    conf: Config
    remote: str | None
    """The address of the Spark Connect server; None: each life starts an embedded Spark."""
    batches: int
    timeout_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    """What a life needs to get at that server."""


@dataclass(frozen=True)
class Reference:
    """A run without a fault: which points it passed, and what its states held at the end."""

    passings: list[Passing]
    contents: dict[str, Content]
    shares: dict[str, int]
    seconds: float


@dataclass
class Lives:
    """Starts lives, one after the other in each trial; several trials at once, from threads."""

    setting: Setting
    subject: Subject
    scratch: Path
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_over: bool = False

    def reference(self, name: str, pending: int | None = None) -> Reference:
        """Run the topology without a fault, with so many batches in flight."""
        folder, began = self._folder(name), time.monotonic()
        options = {} if pending is None else {"max_spout_pending": pending}
        notes = folder / _NOTES
        code, pid = self._live(folder, noting(notes), options)
        if code != 0:
            raise self._reference_failed(folder, code)
        lines = notes.read_text().splitlines() if notes.exists() else []
        return Reference(
            passings_of(lines, [pid]),
            self.subject.contents(folder),
            stored_shares(folder),
            time.monotonic() - began,
        )

    def attempt(self, trial: Trial, reference: Reference) -> TrialResult:
        """Carry a trial out, until the topology is done, and compare its states."""
        folder, began = self._folder(f"trial-{trial.number:03}"), time.monotonic()
        (folder / SHARES).write_text(json.dumps(reference.shares))
        plan, error, lives = trial.faults(folder), None, 0
        while lives < _LIVES_MAX:
            lives += 1
            code, _ = self._live(folder, plan)
            if code == 0:
                break
            if code != -signal.SIGKILL:
                error = _answer(folder) or f"it ended with {code}"
                break
        else:
            error = f"it was killed {lives} times and not done yet"
        fired = sum(token.exists() for token in trial.tokens(folder))
        differences = {} if error else self._differences(folder, reference)
        took = time.monotonic() - began
        return TrialResult(trial, fired, lives, took, error, differences, str(folder))

    def forget(self, result: TrialResult) -> None:
        """Remove the folder of a trial that nobody need look into."""
        if result.folder is not None:
            shutil.rmtree(result.folder, ignore_errors=True)

    def end_all(self) -> None:
        """Kill whatever still runs; no life begins any more."""
        with self._lock:
            self._is_over = True
            running = list(self._running.values())
        for process in running:
            _end(process)

    def _differences(self, folder: Path, reference: Reference) -> dict[str, Any]:
        found = self.subject.contents(folder)
        compared = {label: compare(got, reference.contents[label]) for label, got in found.items()}
        return {label: differences for label, differences in compared.items() if differences}

    def _live(
        self, folder: Path, plan: FaultPlan, options: Mapping[str, Any] | None = None
    ) -> tuple[int, int]:
        """Run one life to its end, or to the timeout; return how it ended, and its process."""
        setting = self.setting
        conf = setting.conf.replace(home=str(folder / HOME), **(options or {}))
        (folder / ANSWER).unlink(missing_ok=True)
        job = {
            "target": setting.target,
            "folder": str(folder),
            "options": conf.to_dict(),
            "remote": setting.remote,
            "batches": setting.batches,
            "timeout_s": setting.timeout_s,
        }
        (folder / "job.json").write_text(json.dumps(job))
        environment = {**os.environ, **setting.environment, ENVIRONMENT_VARIABLE: plan.to_json()}
        with self._lock, open(folder / "log.txt", "ab") as log:
            if self._is_over:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                [sys.executable, "-m", _CHILD, str(folder / "job.json")],
                stdin=subprocess.PIPE,  # which ends with us, and the life with it
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours
            )
            self._running[process.pid] = process
        try:
            # Its own clock ends it before, in order; this is for one that hangs.
            code = process.wait(1.5 * setting.timeout_s + 60)
        except subprocess.TimeoutExpired:
            _end(process)
            code = 124
            _tell(folder, f"it was not done within {1.5 * setting.timeout_s + 60:.0f} s")
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with self._lock:
                self._running.pop(process.pid, None)
        if self._is_over:
            raise KeyboardInterrupt
        return code, process.pid

    def _reference_failed(self, folder: Path, code: int) -> Exception:
        said = json.loads((folder / ANSWER).read_text()) if (folder / ANSWER).exists() else {}
        text = said.get("error") or f"it ended with {code}"
        if said.get("timed_out"):
            return SourceError(
                f"without any fault the topology was not done within {self.setting.timeout_s:g} s. "
                "A proof needs a source with an end: point the spout at some files, or at a topic "
                "that nobody writes to. If it is only slow, give it longer: --timeout"
            )
        return RunFailedError(
            f"without any fault the topology does not run: {text.rstrip('.')}. The log is "
            f"{folder / 'log.txt'}"
        )

    def _folder(self, name: str) -> Path:
        folder = self.scratch / name
        private_folder(folder)
        return folder


def _answer(folder: Path) -> str | None:
    path = folder / ANSWER
    return json.loads(path.read_text()).get("error") if path.exists() else None


def _tell(folder: Path, error: str) -> None:
    (folder / ANSWER).write_text(json.dumps({"error": error}))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a life, and the JVM that it may have."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_WITHIN_S)
