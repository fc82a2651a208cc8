"""Spouts and bolts: a sentence is acked when all its words are counted."""

from waterspout import BasicBolt, Bolt, TopologyBuilder
from waterspout.testing import FeederSpout

sentences = FeederSpout("sentence", replay=True)


class Split(Bolt):
    """Anchors each word to its sentence."""

    output_fields = ("word",)

    def execute(self, tuple):
        for word in tuple["sentence"].split():
            self.collector.emit([word], anchors=tuple)
        self.collector.ack(tuple)


class Count(BasicBolt):
    """Anchors and acks by itself."""

    output_fields = ("word", "count")

    def __init__(self):
        self.counts = {}

    def execute(self, tuple, collector):
        word = tuple["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])


builder = TopologyBuilder()
builder.set_spout("sentences", sentences)
builder.set_bolt("split", Split(), 4).shuffle_grouping("sentences")
builder.set_bolt("count", Count(), 4).fields_grouping("split", "word")
topology = builder.create_topology("words")
