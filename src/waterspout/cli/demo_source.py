"""The demo's sentences, the same every time, and their count in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

__all__ = ["count_words", "write_sentences"]

_SEED = 20_131_117


def _words(text: str) -> list[str]:
    return text.split()


_ARTICLES = _words("the a one that every no this some another")
_ADJECTIVES = _words("""
    amber ancient brave bright broken calm careful cheerful clever cold copper crooked curious
    dusty early eager faint famous fast fearless foggy forgotten fragile gentle giant golden green
    grey happy heavy hidden hollow hungry icy idle kind late lazy lonely loud lucky mossy muddy
    narrow nervous noisy northern pale patient polite proud quick quiet rainy rare restless rusty
    salty shy silent silver sleepy slow small smooth southern stormy stubborn sunny tall thirsty
    tidy tiny velvet warm wide wild windy wise wooden young
""")
_NOUNS = _words("""
    acorn anchor badger barge basket beacon beaver bell bicycle boat boulder bridge bucket butcher
    camel candle captain carpenter cedar cellar chimney clock cloud comet compass cook crane creek
    cricket dancer desert diver donkey dragonfly drummer engine falcon farmer ferry fiddler fisher
    forest fountain fox gardener gate ginger glacier goat hammer harbour heron hill horse island
    juggler kettle kite ladder lantern lemon lighthouse lizard magpie market mason meadow miller
    mountain needle oak orchard otter owl painter parrot pebble pepper pilot pirate plough pony
    porter potter pump quarry rabbit raft river robin rope sailor saddle salmon seagull shepherd
    singer smith snail sparrow spider stable station stork street tailor teapot thunder toad tower
    tractor tulip turtle valley village violin walnut weaver whale willow windmill winter wolf
""")
_VERBS = _words("""
    admires answers asks borrows builds buries calls carries chases circles cleans climbs counts
    crosses discovers draws dreams fears feeds finds follows forgets greets guards guides hears
    hides invites joins keeps leaves lifts loses measures meets mends misses observes opens paints
    passes praises pulls pushes races remembers repairs returns sees sells shakes sketches steals
    surprises teaches thanks trades trusts visits wakes washes watches
""")
_WHERE = _words("above across along around behind below beside beyond inside near outside under")


def write_sentences(folder: Path, sentences: int, files: int) -> None:
    """Write text files as equal in length as can be, in the order in which they are read."""
    folder.mkdir(parents=True)
    for index in range(files):
        chance = random.Random(_SEED + index)  # noqa: S311  (not for secrets)
        count = sentences * (index + 1) // files - sentences * index // files
        lines = [_sentence(chance) for _ in range(count)]
        file = folder / f"sentences-{index + 1:03}.txt"
        file.write_text("\n".join([*lines, ""]), encoding="utf-8")


def count_words(*files: Path) -> Counter[str]:
    """Count every word of some files, without Spark and without this library."""
    total: Counter[str] = Counter()
    for file in files:
        total.update(file.read_text(encoding="utf-8").split())
    return total


def _sentence(chance: random.Random) -> str:
    # A square makes early words of a list frequent and late ones rare, as words are.
    def pick(words: list[str]) -> str:
        return words[int(len(words) * chance.random() ** 2)]

    subject = f"{pick(_ARTICLES)} {pick(_ADJECTIVES)} {pick(_NOUNS)}"
    where = f"{pick(_WHERE)} {pick(_ARTICLES)} {pick(_NOUNS)}"
    return f"{subject} {pick(_VERBS)} {pick(_ARTICLES)} {pick(_NOUNS)} {where}"
