"""The order of texts, which must be that of the stores' indexes: two writers rely on it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import examples
from waterspout.state import _ordering
from waterspout.state._ordering import order_of

starts = st.sampled_from(["", "word-", "ß", "\0", "a\0", "12345678", "123456789"])
words = st.builds(lambda start, end: start + end, starts, st.text(max_size=3))


@examples(100)
@given(words=st.lists(words, min_size=1), lead=starts, skipped=st.integers(0, 3))
def test_texts_come_in_the_order_of_their_bytes(words, lead, skipped):
    texts = [lead + word for word in words]
    column = pa.array(["?"] * skipped + texts, pa.string()).slice(skipped)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ordering, "_FEW", 1)
        order = order_of(column).to_pylist()

    assert sorted(order) == list(range(len(texts)))
    assert [texts[i].encode() for i in order] == sorted(text.encode() for text in texts)


@pytest.mark.parametrize("word", ["{:08d}", "word-{:d}", "{:d}-" + "x" * 20, "same beginning {:d}"])
def test_many_texts_that_are_told_apart_by_few_bytes_or_late(word):
    texts = [word.format(i * 7919 % 20_011) for i in range(20_000)]

    order = order_of(pa.array(texts, pa.string())).to_pylist()

    assert [texts[i] for i in order] == sorted(texts)
