"""The reach of a page with bolts: a chain from the argument to the result.

waterspout run examples/linear_reach.py --serve 127.0.0.1:8080
waterspout drpc reach foo.com/blog/1 --url http://127.0.0.1:8080

The first field of every tuple is the id of its request. A `BatchBolt` is made for each request and
told when it has all its tuples; so the last one can give the result. See `drpc_reach.py` for the
same in Trident.
"""

from waterspout import BasicBolt, Config, submit
from waterspout.drpc import DRPCClient, LinearDRPCTopologyBuilder
from waterspout.transactional import BatchBolt

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


class Linkers(BasicBolt):
    """A page to those who linked to it."""

    output_fields = ("id", "linker")

    def execute(self, tuple, collector):
        id, page = tuple.values
        for linker in LINKED_BY.get(page, ()):
            collector.emit([id, linker])


class Followers(BasicBolt):
    """Somebody to those who follow them."""

    output_fields = ("id", "follower")

    def execute(self, tuple, collector):
        id, linker = tuple.values
        for follower in FOLLOWED_BY.get(linker, ()):
            collector.emit([id, follower])


class DifferentPeople(BatchBolt):
    """Counts those that come to this task, each once."""

    output_fields = ("id", "people")

    def prepare(self, conf, context, collector, id):
        self.collector, self.id = collector, id
        self.people = set()

    def execute(self, tuple):
        self.people.add(tuple["follower"])

    def finish_batch(self):
        self.collector.emit([self.id, len(self.people)])


class Reach(BatchBolt):
    """Adds the counts of all tasks up."""

    output_fields = ("id", "reach")

    def prepare(self, conf, context, collector, id):
        self.collector, self.id = collector, id
        self.reach = 0

    def execute(self, tuple):
        self.reach += tuple["people"]

    def finish_batch(self):
        self.collector.emit([self.id, self.reach])


builder = LinearDRPCTopologyBuilder("reach")
builder.add_bolt(Linkers(), 2)
builder.add_bolt(Followers(), 2).shuffle_grouping()
builder.add_bolt(DifferentPeople(), 2).fields_grouping("id", "follower")
builder.add_bolt(Reach(), 2).fields_grouping("id")
topology = builder.create_topology("linear_reach")

if __name__ == "__main__":
    run = submit(topology, config=Config(serve="127.0.0.1:0"))
    with DRPCClient(run.server_url) as client:
        for page in PAGES:
            print(page, client.execute("reach", page)[0][0])
    run.stop()
