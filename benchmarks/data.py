"""The workload: sentences of 8 words, Zipf-distributed, and the true count of every word."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

__all__ = ["make_data", "true_counts"]


def make_data(
    folder: Path, sentences: int, files: int, *, words: int = 8, vocabulary: int = 100_000
) -> Path:
    """Write the sentences once (seed 7); return the folder with the files."""
    target = folder / f"{sentences}-in-{files}"
    if (target / "done").exists():
        return target / "in"
    (target / "in").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    weights = 1.0 / np.arange(1, vocabulary + 1) ** 1.1
    edges = np.cumsum(weights / weights.sum())
    names = [f"w{i}" for i in range(vocabulary)]
    for number in range(files):
        drawn = np.searchsorted(edges, rng.random((sentences // files, words)), side="right")
        drawn = np.minimum(drawn, vocabulary - 1)
        lines = (" ".join(names[i] for i in row) for row in drawn.tolist())
        (target / "in" / f"part-{number:05}.txt").write_text("\n".join(lines) + "\n")
    (target / "done").touch()
    return target / "in"


def true_counts(folder: Path) -> Counter[str]:
    """Count every word again, in plain Python."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.iterdir()):
        counts.update(path.read_text().split())
    return counts
