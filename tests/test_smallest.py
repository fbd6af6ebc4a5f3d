"""Searches for the smallest stream: in which order, and what they are told."""

from __future__ import annotations

from attrs import evolve

from servespec.actions import Submit
from servespec.config import Config
from servespec.events import Delivered
from servespec.machine import Machine
from servespec.policy import MINIATURE
from servespec.theory.batching import Twins
from servespec.theory.smallest import Space, all_kinds, both, smallest
from servespec.theory.stream import ANSWER, always

LESS, MORE = (Machine(Config(blocks, 1, 16, 64, 1), MINIATURE) for blocks in (4, 5))
TWINS = Twins(LESS, MORE)
ONE = Space((Submit("", (0,), 1),), most=1, last_arrival=0)
"""A single stream, of one request."""


def test_a_space_is_gone_through_from_small_to_large() -> None:
    """Two kinds, the larger one named first, at step 0 or 1: streams of one request before those of
    two, then fewer tokens before more, then early before late. Each is looked at once."""
    large, small = Submit("", (0, 0), 2), Submit("", (0,), 1)
    found = list(both(TWINS, Space((large, small), most=2, last_arrival=1)))
    pairs = [(0, 0), (0, 1), (1, 1)]
    ones = [((step, kind),) for kind in (small, large) for step in (0, 1)]
    twos = [
        ((one, first), (two, second))
        for first, second in ((small, small), (large, small), (small, large), (large, large))
        for one, two in pairs
    ]
    assert [
        tuple((a.step, evolve(a.submit, id="")) for a in f.stream.arrivals) for f in found
    ] == ones + twos
    assert [f.looked_at for f in found] == list(range(1, 4 + 12 + 1))


def test_every_kind_of_request() -> None:
    assert all_kinds(((0,), (0, 0)), 2, priorities=(0, 3)) == tuple(
        Submit("", prompt, output, priority=priority)
        for prompt, output, priority in (
            ((0,), 1, 0),
            ((0,), 1, 3),
            ((0,), 2, 0),
            ((0,), 2, 3),
            ((0, 0), 1, 0),
            ((0, 0), 1, 3),
            ((0, 0), 2, 0),
            ((0, 0), 2, 3),
        )
    )


def test_where_nothing_is_odd_nothing_is_found() -> None:
    assert smallest(TWINS, ONE, lambda a, b: False) is None


def test_a_search_asks_the_model_that_it_is_given() -> None:
    """It says 7 to everything; unless one is given, it says what no prompt of a small scope has."""
    for answers, token in ((always(7), 7), (None, ANSWER)):
        found = smallest(TWINS, ONE, lambda a, b: True, answers)
        assert found is not None
        for course in (found.first, found.second):
            told = [e.tokens for step in course.steps for e in step if isinstance(e, Delivered)]
            assert told == [(token,)]
