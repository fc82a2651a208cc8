"""Count words, and answer questions about the counts while they grow.

waterspout run examples/word_count_query.py --until-idle
sqlite3 word_queries.db 'SELECT number, question, total FROM answers ORDER BY number'

A question is some words; its answer is how often they have come so far, all together. Sentences
and questions are two streams of one topology, so they go through it in the same batches, and a
question sees the counts of exactly the batches before its own: also after a crash, and if its
batch is replayed.
"""

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, MapGet, Split, Sum, TridentTopology

SENTENCES = [
    "the tide takes the boats out",
    "the boats come back with the tide",
    "the gulls follow the boats",
]
QUESTIONS = [(1, "the"), (2, "the boats"), (3, "gulls tide whale")]
DATABASE = "word_queries.db"

topology = TridentTopology("word_count_query")

words = topology.new_stream("sentences", FixedBatchSpout("sentence", 1, SENTENCES)).each(
    "sentence", Split(), "word"
)
counts = words.group_by("word").persistent_aggregate(
    SQLiteState.opaque(DATABASE, "counts"), Count(), "count"
)

answers = (
    topology.new_stream("questions", FixedBatchSpout(["number", "question"], 1, QUESTIONS))
    .each("question", Split(), "word")
    .group_by("word")
    .state_query(counts, "word", MapGet(), "count")
    .group_by(["number", "question"])
    .persistent_aggregate(SQLiteState.opaque(DATABASE, "answers"), "count", Sum(), "total")
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    for number, question in QUESTIONS:
        print(f"{question}: {answers.get([number, question])}")
