"""The reach of a page, as Storm's example computes it: who tweeted it, who follows them."""

from __future__ import annotations

from waterspout.topology import BasicBolt
from waterspout.transactional import BatchBolt

# The sizes are those of Storm's example: 16, 14 and 7 people can have seen these pages.
TWEETERS = {
    "foo.com/blog/1": ["ada", "ben", "cyr", "dov", "eli"],
    "engineering.twitter.com/blog/5": ["fay", "gil", "ada", "eli"],
    "tech.backtype.com/blog/123": ["cyr", "hal", "ira"],
}
FOLLOWERS = {
    "ada": ["ben", "cyr", "jo", "fay", "kit", "lou", "moe"],
    "ben": ["ada", "eli", "kit", "nan", "gil", "oz"],
    "cyr": ["pip"],
    "eli": ["ada", "ben", "fay", "quin", "lou", "oz", "ray", "sue"],
    "fay": ["gil", "tam"],
    "hal": ["ira", "ben"],
    "ira": ["jo", "eli", "kit", "hal", "ben"],
}
EXPECTED = {
    "foo.com/blog/1": 16,
    "engineering.twitter.com/blog/5": 14,
    "tech.backtype.com/blog/123": 7,
    "nobody.example/page": 0,
}


class GetTweeters(BasicBolt):
    """A page to those who tweeted it."""

    output_fields = ("id", "tweeter")

    def execute(self, tuple, collector):
        id, url = tuple.values
        for tweeter in TWEETERS.get(url, ()):
            collector.emit([id, tweeter])


class GetFollowers(BasicBolt):
    """Somebody to those who follow them."""

    output_fields = ("id", "follower")

    def execute(self, tuple, collector):
        id, tweeter = tuple.values
        for follower in FOLLOWERS.get(tweeter, ()):
            collector.emit([id, follower])


class PartialUniquer(BatchBolt):
    """Counts the different followers among those that come to this task."""

    output_fields = ("id", "partial_count")

    def prepare(self, conf, context, collector, id):
        self.collector, self.id = collector, id
        self.followers = set()

    def execute(self, tuple):
        self.followers.add(tuple["follower"])

    def finish_batch(self):
        self.collector.emit([self.id, len(self.followers)])


class CountAggregator(BatchBolt):
    """Adds the partial counts up."""

    output_fields = ("id", "reach")

    def prepare(self, conf, context, collector, id):
        self.collector, self.id = collector, id
        self.count = 0

    def execute(self, tuple):
        self.count += tuple["partial_count"]

    def finish_batch(self):
        self.collector.emit([self.id, self.count])
