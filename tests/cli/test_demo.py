"""`waterspout demo`, from beginning to end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys

import pytest


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_program_is_told_what_the_demo_found(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "waterspout.cli", "demo", "--sentences", "4000", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    assert (told["exact"], told["sentences"], told["folder"]) == (True, 4000, None)
    assert told["words"] == {"state": 36_000, "recount": 36_000}
    assert told["wrong"] == []
    assert told["killed"]["txid"] == 18
    assert 0 < told["killed"]["rows_written"] < told["killed"]["rows"]


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_demo_is_killed_in_mid_commit_and_ends_exact(tmp_path):
    options = ("--sentences", "8000", "--folder", str(tmp_path / "demo"))

    ran = subprocess.run(
        [sys.executable, "-m", "waterspout.cli", "demo", *options],
        env={**os.environ, "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert "\x1b" not in ran.stdout
    told = " ".join(ran.stdout.split())
    written = re.search(r"(\d+) of its (\d+) rows are written", told)
    assert 0 < int(written[1]) < int(written[2])
    assert "in the commit of batch 18" in told
    assert "resumes at batch 18" in told
    replayed = re.search(r"\(up to 40\), (\d+) replayed", told)
    assert 1 <= int(replayed[1]) <= 3
    assert " s] exact all " in told
    with contextlib.closing(sqlite3.connect(tmp_path / "demo" / "counts.db")) as db:
        assert db.execute("SELECT sum(count) FROM word_counts").fetchone() == (9 * 8000,)
