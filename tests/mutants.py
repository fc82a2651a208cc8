"""Breaks one rule at a time in a copy of the library, and expects the tests named for it to fail.

    make mutants                 all of them
    make mutants ARGS='head'     those whose name contains a word

A mutant that survives is a promise that no test guards. Each names the lines it replaces, so one
that no longer fits the code is an error here, not a silent pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src") / "waterspout"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: the first test that failed, or that none did, or nothing."""

    mutant: Mutant
    caught_by: str | None
    seconds: float
    trouble: str = ""


class UnfitError(Exception):
    """A mutant that could not be tried: it does not fit the code, or its tests did not run."""


def main(words: list[str]) -> int:
    """Try the mutants whose names contain one of the words; 1 if one survives."""
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    print(f"{len(chosen)} mutants")
    verdicts = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(tried, chosen):
            verdicts.append(verdict)
            outcome = verdict.trouble or verdict.caught_by or "SURVIVED"
            print(f"{verdict.mutant.name:60} {verdict.seconds:5.1f} s  {outcome}", flush=True)
    survivors = [v.mutant.name for v in verdicts if v.caught_by is None]
    print(f"{len(verdicts) - len(survivors)} of {len(verdicts)} caught", *survivors)
    return 1 if survivors or not verdicts else 0


def tried(mutant: Mutant) -> Verdict:
    """Run a mutant's tests against a copy of the library that has it."""
    began = time.monotonic()
    caught_by, trouble = None, ""
    try:
        caught_by = caught(mutant)
    except (UnfitError, subprocess.TimeoutExpired) as error:
        trouble = f"NOT TRIED: {error}"
    return Verdict(mutant, caught_by, time.monotonic() - began, trouble)


def caught(mutant: Mutant) -> str | None:
    with tempfile.TemporaryDirectory(prefix="waterspout-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = Path(folder) / PACKAGE / mutant.file
        text = file.read_text(encoding="utf-8")
        found = text.count(mutant.old)
        if found != 1:
            raise UnfitError(f"{mutant.file} has {found} of {mutant.old!r}; mend it")
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        return first_failure(mutant, copy, "not soak") or first_failure(mutant, copy, "soak")


def first_failure(mutant: Mutant, copy: Path, marks: str) -> str | None:
    """Run those of a mutant's tests that have these marks; return the first that fails."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no"),
            *("-p", "no:cacheprovider", "-m", marks, *mutant.tests),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if ran.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if ran.returncode != pytest.ExitCode.TESTS_FAILED or not failed:
        raise UnfitError(f"pytest exited with {ran.returncode}:\n{ran.stdout[-2000:]}")
    return failed[0].split(" ")[1].split("::")[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
