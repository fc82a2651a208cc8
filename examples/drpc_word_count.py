"""Count words, and let others ask for the counts while they grow.

waterspout run examples/drpc_word_count.py --serve 127.0.0.1:8080
waterspout drpc words "cat dog the man" --url http://127.0.0.1:8080
curl http://127.0.0.1:8080/drpc/words/the

A request is some words; its answer is how often they have come so far, all together, in the
batches that have committed. It is computed in the driver, beside the batches: no Spark job.
"""

from waterspout import Config, submit
from waterspout.drpc import DRPCClient
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, FilterNull, MapGet, Split, Sum, TridentTopology

SENTENCES = [
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
    "to be or not to be the person",
]

topology = TridentTopology("drpc_word_count")

counts = (
    topology.new_stream("sentences", FixedBatchSpout("sentence", 3, SENTENCES))
    .each("sentence", Split(), "word")
    .group_by("word")
    .persistent_aggregate(SQLiteState.opaque("drpc_words.db", "counts"), Count(), "count")
)

(
    topology.new_drpc_stream("words")
    .each("args", Split(), "word")
    .group_by("word")
    .state_query(counts, "word", MapGet(), "count")
    .each("count", FilterNull())
    .aggregate("count", Sum(), "sum")
)

if __name__ == "__main__":
    run = submit(topology, config=Config(serve="127.0.0.1:0"))
    run.process_all_available()
    with DRPCClient(run.server_url) as client:
        for words in ("cat dog the man", "the to be", "whale"):
            print(f"{words}: {client.execute('words', words)[0][0]}")
    run.stop()
