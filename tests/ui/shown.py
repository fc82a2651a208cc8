"""Topologies with something to show: two databases, a replay, dead letters, a killed worker."""

from __future__ import annotations

import os
from pathlib import Path

from waterspout import BasicBolt, FailedException, TopologyBuilder
from waterspout.spouts.files import FileSpout
from waterspout.spouts.lines import LinesSpout
from waterspout.state import StateFactory
from waterspout.state.sqlite import SQLiteState
from waterspout.topology._graph import Topology
from waterspout.trident import Count, Sum, TridentTopology

CITIES = ("berlin", "lagos", "lima", "osaka")
FILES = 5
POISON = "the poison"


def city_of(line: str) -> str:
    return line.partition(",")[0]


def amount_of(line: str) -> int:
    return int(line.partition(",")[2])


class Stumble:
    """Passes everything on; the first time that it sees Lima it fails the batch."""

    def fall(self) -> None:
        raise ConnectionError("the directory of cities did not answer")

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __call__(self, city: str) -> str:
        if city == "lima" and not os.path.exists(self._mark):
            Path(self._mark).touch()
            self.fall()
        return city.title()


class Die(Stumble):
    """On Spark: fails as one that is not to be tried again, and kills its worker at Osaka, once."""

    def fall(self) -> None:
        raise FailedException("the directory of cities did not answer")

    def __call__(self, city: str) -> str:
        killed = f"{self._mark}.killed"
        if city == "osaka" and not os.path.exists(killed):
            Path(killed).touch()
            os._exit(9)
        return super().__call__(city)


def orders(place: Path, counts: StateFactory, stumble: type[Stumble] = Stumble) -> TridentTopology:
    """Sums orders by city in SQLite, counts them elsewhere; a line of every third file is bad."""
    data = place / "orders"
    data.mkdir(parents=True)
    for n in range(FILES):
        lines = [f"{city},{10 * n + i}" for i, city in enumerate(CITIES)]
        lines += ["berlin,twelve"] if n % 3 == 1 else []
        (data / f"{n}.txt").write_text("\n".join(lines) + "\n")
    topology = TridentTopology("orders")
    named = (
        topology.new_stream("in", FileSpout(str(data), max_files=1))
        .each("value", amount_of, "amount bigint", on_error="dead_letter")
        .name("amount")
        .each("value", city_of, "city string")
        .each("city", stumble(place / "stumbled"), "name string")
        .name("look up")
    )
    totals = SQLiteState.opaque(place / "totals.db", table="totals")
    named.group_by("name").persistent_aggregate(totals, "amount", Sum(), out="total")
    named.group_by("name").persistent_aggregate(counts, Count(), "orders")
    return topology


class Split(BasicBolt):
    """Splits sentences; one of them kills its worker."""

    output_fields = ("word",)

    def execute(self, tuple, collector):
        if tuple["line"] == POISON:
            os._exit(9)
        for word in tuple["line"].split():
            collector.emit([word])


class CountWords(BasicBolt):
    output_fields = ("word", "count")

    def prepare(self, conf, context):
        self.counts: dict[str, int] = {}

    def execute(self, tuple, collector):
        word = tuple["word"]
        if word == "unlucky":
            raise ValueError(f"{word!r} is not a word that is counted")
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])


def words(place: Path) -> Topology:
    """Counts words; one sentence kills its worker, one word is refused."""
    data = place / "sentences"
    data.mkdir(parents=True)
    lines = [f"sentence number {n} of many" for n in range(60)]
    lines[20], lines[40] = POISON, "an unlucky one"
    (data / "a.txt").write_text("\n".join(lines) + "\n")
    builder = TopologyBuilder()
    builder.set_spout("sentences", LinesSpout(str(data)))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
    builder.set_bolt("count", CountWords(), 2).fields_grouping("split", "word")
    return builder.create_topology("words")
