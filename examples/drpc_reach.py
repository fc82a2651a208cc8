"""Who could have seen a page: all who follow somebody that linked to it, computed when asked.

waterspout run examples/drpc_reach.py --serve 127.0.0.1:8080
waterspout drpc reach foo.com/blog/1 --url http://127.0.0.1:8080

Nothing is counted beforehand: a request is taken apart into who linked to the page and who follows
them, each in parallel, and put together again. `linear_reach.py` does the same with bolts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from waterspout import Config, submit
from waterspout.drpc import DRPCClient
from waterspout.state import State, StateFactory
from waterspout.trident import Count, TridentTopology, query

LINKED_BY = {
    "foo.com/blog/1": ["ada", "ben", "cyr", "dov", "eli"],
    "engineering.twitter.com/blog/5": ["fay", "gil", "ada", "eli"],
    "tech.backtype.com/blog/123": ["cyr", "hal", "ira"],
}
FOLLOWED_BY = {
    "ada": ["ben", "cyr", "jo", "fay", "kit", "lou", "moe"],
    "ben": ["ada", "eli", "kit", "nan", "gil", "oz"],
    "cyr": ["pip"],
    "eli": ["ada", "ben", "fay", "quin", "lou", "oz", "ray", "sue"],
    "fay": ["gil", "tam"],
    "hal": ["ira", "ben"],
    "ira": ["jo", "eli", "kit", "hal", "ben"],
}
PAGES = [*LINKED_BY, "nobody.example/page"]


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


topology = TridentTopology("drpc_reach")
linked_by = topology.new_static_state(DirectoryOf(LINKED_BY))
followed_by = topology.new_static_state(DirectoryOf(FOLLOWED_BY))

(
    topology.new_drpc_stream("reach")
    .state_query(linked_by, "args", look_up, "linkers")
    .each("linkers", one_by_one, "linker string")
    .shuffle()
    .state_query(followed_by, "linker", look_up, "followers")
    .each("followers", one_by_one, "person string")
    .group_by("person")
    .aggregate(Count(), "times")
    .aggregate(Count(), "reach")
)

if __name__ == "__main__":
    run = submit(topology, config=Config(serve="127.0.0.1:0"))
    with DRPCClient(run.server_url) as client:
        for page in PAGES:
            print(page, client.execute("reach", page)[0][0])
    run.stop()
