"""What a benchmark found, in a form that all of them share: ratios, each beside its peer."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Ratio", "Results", "add_json_option"]


@dataclass(frozen=True)
class Ratio:
    """What we reached of a peer, round by round."""

    name: str
    of: str
    values: Sequence[float]
    aim: float | None = None
    at_most: bool = False
    """Whether less is better: a cost and not a rate."""

    @property
    def median(self) -> float:
        """The ratio that counts."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """How far apart the rounds are, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median

    @property
    def is_met(self) -> bool | None:
        """Whether the aim was reached; None: there is none."""
        if self.aim is None:
            return None
        return self.median <= self.aim if self.at_most else self.median >= self.aim

    @classmethod
    def between(
        cls,
        name: str,
        of: str,
        rates: Mapping[str, Sequence[float]],
        aim: float | None = None,
        *,
        best_of: Iterable[str] = (),
    ) -> Ratio:
        """Return the ratio of two rates of the same rounds; or to the best of several peers."""
        peers = list(best_of) or [of]
        best = max(peers, key=lambda peer: statistics.median(rates[peer]))
        pairs = zip(rates[name], rates[best], strict=True)
        return cls(name, of, [ours / theirs for ours, theirs in pairs], aim)


@dataclass
class Results:
    """All that a benchmark found."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)

    def write(self, path: Path | None) -> None:
        """Write it to a file, if there is to be one."""
        if path is not None:
            path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return what was written."""
        found = json.loads(path.read_text())
        return cls(found["rates"], [Ratio(**ratio) for ratio in found["ratios"]])


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where to write what was found."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
