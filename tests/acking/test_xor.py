"""Combining reports about trees, against a dict."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waterspout.acking.xor import (
    NO_ROOT,
    combine,
    draw,
    draw_roots,
    generator,
    keyed_ids,
    no_ids,
)

LARGEST = 2**64 - 1
# Few roots, so that they meet; large ones, so that a signed number in between would show.
ROOTS = st.sampled_from([NO_ROOT, 1, 2, 3, 2**63 - 1, 2**63, LARGEST])
PAIRS = st.lists(st.tuples(ROOTS, st.integers(0, LARGEST)), max_size=12)


def ids(*numbers: int):
    return np.array(numbers, np.uint64)


@given(st.lists(PAIRS, max_size=4))
def test_combining_is_the_xor_of_each_root(pieces):
    expected: dict[int, int] = defaultdict(int)
    for root, value in [pair for piece in pieces for pair in piece]:
        expected[root] ^= value

    roots, values = combine(
        [ids(*(root for root, _ in piece)) for piece in pieces],
        [ids(*(value for _, value in piece)) for piece in pieces],
    )

    wanted = {root: value for root, value in sorted(expected.items()) if value and root != NO_ROOT}
    assert dict(zip(roots.tolist(), values.tolist(), strict=True)) == wanted
    assert roots.tolist() == sorted(wanted)


@given(PAIRS, st.integers(0, 12))
def test_combining_in_pieces_gives_the_same(pairs, cut):
    roots = ids(*(root for root, _ in pairs))
    values = ids(*(value for _, value in pairs))
    first, second = combine([roots[:cut]], [values[:cut]]), combine([roots[cut:]], [values[cut:]])

    whole = combine([roots], [values])
    pieces = combine([first[0], second[0]], [first[1], second[1]])

    assert [a.tolist() for a in pieces] == [a.tolist() for a in whole]


def test_nothing_combines_to_nothing():
    for roots, values in (combine([], []), combine([no_ids()], [no_ids()])):
        assert (len(roots), len(values)) == (0, 0)
        assert (roots.dtype, values.dtype) == (np.uint64, np.uint64)


def test_an_id_that_is_created_and_acked_leaves_nothing():
    roots, values = combine([ids(5, 5, 6)], [ids(77, 77, 1)])

    assert (roots.tolist(), values.tolist()) == ([6], [1])


def test_drawn_ids_are_never_zero_and_use_all_64_bits():
    drawn = draw(generator([1]), 200_000)

    assert drawn.min() > 0
    assert len(np.unique(drawn)) == 200_000
    ones = [int(np.count_nonzero(drawn & np.uint64(1 << bit))) for bit in range(64)]
    assert min(ones) > 98_000
    assert max(ones) < 102_000


def test_the_same_seed_draws_the_same_ids():
    again = draw(generator([7, 1, 0, 2]), 5)

    assert draw(generator([7, 1, 0, 2]), 5).tolist() == again.tolist()
    assert draw(generator([7, 1, 0, 3]), 5).tolist() != again.tolist()


def test_ids_have_no_linear_relation_over_xor():
    """64-bit ids from a generator that is linear over XOR would be zero in small sums."""
    drawn = draw(generator([3]), 64 * 4)

    rank = 0
    rows = drawn.tolist()
    for bit in range(64):
        pivot = next((row for row in rows if row >> bit & 1), None)
        if pivot is not None:
            rank += 1
            rows.remove(pivot)
            rows = [row ^ pivot if row >> bit & 1 else row for row in rows]
    assert rank == 64


def test_roots_are_drawn_in_ascending_order_and_as_any_ids_else():
    drawn, roots = draw(generator([5]), 1000), draw_roots(generator([5]), 1000)

    assert roots.tolist() == sorted(drawn.tolist())
    assert len(draw_roots(generator([5]), 0)) == 0


def test_a_key_gives_these_ids_whatever_the_version_of_numpy():
    """Where another machine drew others, no tree that crosses it would ever be whole."""
    drawn = keyed_ids((3, LARGEST), 4)

    assert drawn.dtype == np.uint64
    assert [hex(each) for each in drawn.tolist()] == [
        "0xfd5c4948e1219c76",
        "0x2abe46e7f1f8cf5c",
        "0x295fcab73abf18e6",
        "0x332898bec25565a8",
    ]
