"""The store of docs/rows.md, and the example of its first lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_store_of_the_documentation_passes_the_kit(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "rows.md").read_text(), re.S)
    (tmp_path / "test_store.py").write_text(blocks[-1])
    # What is tried at random takes its time, and is tried over our own stores already.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
    command += ["-k", "not whatever_happens", "."]

    ran = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "to_dataframe is not possible" in ran.stdout
