"""How many have been within at the same time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from waterspout.errors import FailedException
from waterspout.transactional._at_once import AtOnce


def test_each_is_told_the_most_that_were_there_while_it_was():
    at_once = AtOnce()
    first, second, third = ExitStack(), ExitStack(), ExitStack()

    one = first.enter_context(at_once.one_more())
    assert one.most == 1
    two = second.enter_context(at_once.one_more())
    assert (one.most, two.most) == (2, 2)
    first.close()
    three = third.enter_context(at_once.one_more())
    second.close()
    third.close()

    assert (one.most, two.most, three.most) == (2, 2, 2)
    with at_once.one_more() as alone:
        assert alone.most == 1


def test_one_that_fails_is_not_counted_any_more():
    at_once = AtOnce()
    with pytest.raises(FailedException), at_once.one_more():
        raise FailedException

    with at_once.one_more() as present:
        assert present.most == 1
