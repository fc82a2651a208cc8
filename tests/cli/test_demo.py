"""`waterspout demo`, from beginning to end."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys

import pytest


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_demo_is_killed_in_mid_commit_and_ends_exact(tmp_path):
    options = ("--sentences", "8000", "--folder", str(tmp_path / "demo"))

    ran = subprocess.run(
        [sys.executable, "-m", "waterspout.cli", "demo", *options],
        env={**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert "\x1b" not in ran.stdout
    rows, of = map(int, re.search(r"(\d+) of its (\d+)\s+rows are written", ran.stdout).groups())
    assert 0 < rows < of
    assert "in the commit of batch 18" in ran.stdout
    assert "resumes at batch 18" in ran.stdout
    replayed = re.search(r"40 batches committed, (\d+) of them replayed", ran.stdout)
    assert 1 <= int(replayed[1]) <= 3
    assert re.search(r"^\[ *\d+\.\d s\] exact ", ran.stdout, re.MULTILINE)
    with contextlib.closing(sqlite3.connect(tmp_path / "demo" / "counts.db")) as db:
        assert db.execute("SELECT sum(count) FROM word_counts").fetchone() == (9 * 8000,)
