"""The hashtags that were used most, again and again: of the last nine, after every third.

waterspout run examples/top_hashtags.py --until-idle
sqlite3 hashtags.db 'SELECT until, place, tag, times FROM top_tags'

A window reaches over many batches. What it holds is kept in a state (of the topology's own, if
none is given), so it survives a restart, and its results are given once. By time instead of by
number: `sliding_window(timedelta(minutes=10), timedelta(minutes=1), ...)`.
"""

import re
from collections import Counter

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Aggregator, Columns, Max, TridentTopology

POSTS = [
    "#storm at sea, the #ferry is late",
    "#storm! #Storm! no #tea left",
    "the #ferry is in, #tea for all",
    "#storm over, #gulls back",
    "#gulls everywhere #gulls",
    "#gulls on the #ferry",
]
PLACES = 2


def hashtags(post):
    """Yield each hashtag of a post, as often as it comes."""
    for tag in re.findall(r"#(\w+)", post):
        yield tag.lower()


class MostUsed(Aggregator):
    """The most frequent tags of a window; of equally frequent ones, first in the alphabet."""

    def init(self, window, collector):
        return window, Counter()

    def aggregate(self, value, tuple, collector):
        _, counts = value
        counts[tuple["tag"]] += 1

    def complete(self, value, collector):
        window, counts = value
        best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:PLACES]
        for place, (tag, times) in enumerate(best, start=1):
            # `window.end` is how many tags had come when the window was full.
            collector.emit((window.end, place, tag, times))


topology = TridentTopology("top_hashtags")
top_tags = (
    topology.new_stream("posts", FixedBatchSpout("post", 2, POSTS))
    .each("post", hashtags, "tag string")
    .sliding_window(9, 3, "tag", MostUsed(), "until bigint, place int, tag string, times bigint")
    .group_by(["until", "place"])
    .persistent_aggregate(
        SQLiteState.opaque("hashtags.db", "top_tags"),
        Columns(tag=("tag", Max()), times=("times", Max())),
    )
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    for until in (3, 6, 9, 12):
        print(until, *[top_tags.get([until, place]) for place in (1, 2)])
