"""Who could have seen a page: all who follow somebody that linked to it, each counted once.

waterspout run examples/reach.py --until-idle
sqlite3 reach.db 'SELECT request, page, people FROM reach ORDER BY request'

Who linked to what, and who follows whom, is in two states that the topology only reads. Here they
are dictionaries; a state of your own reads a database instead, for all tuples of a batch at once.
Each step from pages to people multiplies the tuples, and each runs in parallel. Nobody is asked
about a page twice: an answer has the number of its request, and no answer means nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state import State, StateFactory
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, TridentTopology, query

LINKED_BY = {
    "harbour.example/tides": ["ada", "bela", "cai"],
    "harbour.example/ferries": ["bela", "eve"],
    "harbour.example/gulls": ["dov"],
}
FOLLOWED_BY = {
    "ada": ["bela", "finn", "gro", "hua"],
    "bela": ["ada", "finn", "ivo"],
    "cai": ["gro", "hua", "ivo", "jun"],
    "eve": ["ada", "finn"],
}
REQUESTS = [
    (1, "harbour.example/tides"),
    (2, "harbour.example/ferries"),
    (3, "harbour.example/gulls"),
    (4, "harbour.example/unheard-of"),
]


class Directory(State):
    """Lists of names by name."""

    def __init__(self, names):
        self.names = names

    def find(self, keys):
        """Return one list for each key."""
        return [self.names.get(key, []) for key in keys]


@dataclass(frozen=True)
class DirectoryOf(StateFactory):
    """The recipe of a directory, which is sent to wherever it is asked."""

    names: Mapping[str, list[str]]

    def make_state(self, conf, partition_index, num_partitions):
        return Directory(self.names)


@query
def look_up(directory, tuples) -> list[list[str]]:
    """Ask for all tuples at once."""
    return directory.find([row[0] for row in tuples])


def one_by_one(names):
    """Make a tuple of each name."""
    yield from names


topology = TridentTopology("reach")
linked_by = topology.new_static_state(DirectoryOf(LINKED_BY))
followed_by = topology.new_static_state(DirectoryOf(FOLLOWED_BY))

people = (
    topology.new_stream("requests", FixedBatchSpout(["request", "page"], 2, REQUESTS))
    .state_query(linked_by, "page", look_up, "linkers")
    .each("linkers", one_by_one, "linker string")
    .shuffle()
    .state_query(followed_by, "linker", look_up, "followers")
    .each("followers", one_by_one, "person string")
)
reach = (
    people.group_by(["request", "page", "person"])
    .aggregate(Count(), "times")
    .group_by(["request", "page"])
    .persistent_aggregate(SQLiteState.opaque("reach.db", "reach"), Count(), "people")
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    for request in REQUESTS:
        print(request[1], reach.get(request) or 0)
