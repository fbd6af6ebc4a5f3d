"""Random walks in random worlds, for tests that look at each step of them."""

from __future__ import annotations

from hypothesis import strategies as st

from servecheck.fuzz.draw import pick
from servecheck.fuzz.machine import Drawn
from servecheck.fuzz.moves import MOVES, fire
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.worlds import anywhere, begin
from servespec.policy import Policy


def walked(data: st.DataObject, policy: Policy | None = None, moves: int = 25) -> Walk:
    """A random walk in a random world."""
    chance = Drawn(data)
    walk = begin(chance, anywhere(policy=policy), (), None)
    for _ in range(data.draw(st.integers(1, moves))):
        enabled = [move for move in MOVES.values() if move.enabled(walk)]
        fire(pick(chance, enabled), walk, chance)
    return walk
