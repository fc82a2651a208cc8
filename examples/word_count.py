"""Count the words of text files, exactly once, into an SQLite table.

waterspout run examples/word_count.py --until-idle
sqlite3 word_counts.db 'SELECT word, count FROM word_counts ORDER BY count DESC'

Kill it, put more files into the folder, run it again: every word is counted once.
"""

from pathlib import Path

from waterspout import Config, submit
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology

sentences = FileSpout(Path(__file__).parent / "data", max_files=1)
counts = SQLiteState.opaque("word_counts.db", table="word_counts")

topology = TridentTopology("word_count")
words = topology.new_stream("sentences", sentences).each("value", Split(), "word")
state = words.group_by("word").persistent_aggregate(counts, Count(), "count")

if __name__ == "__main__":
    run = submit(topology, config=Config(max_spout_pending=3))
    run.process_all_available()
    run.stop()
    for word in ("the", "river", "ferry"):
        print(word, state.get([word]))
