"""Why properties hold: from all states in which they do, reachable or not, they go on holding.

All states of small universes are enumerated. What is not preserved names what has to be assumed
besides.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import TypeVar

import pytest
from attrs import evolve

from servecheck.explore.allcaches import AllCaches
from servecheck.explore.allstates import AllStates
from servecheck.explore.cache import CacheSystem, Symmetry
from servecheck.explore.errors import ScopeError
from servecheck.explore.induction import RAISES, Inductive, inductive, needs
from servecheck.explore.scopes import serving
from servecheck.explore.search import Ended, Limits, search
from servecheck.explore.universes import CACHES, SERVING
from servespec.actions import Schedule
from servespec.cache import CacheMachine
from servespec.policy import MINIATURE, VLLM_0_33, FreeWalk, HitCap, Lookup, Policy, Sharing

unless_asked = pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"), reason="takes minutes: set SERVECHECK_SLOW to run it"
)


S = TypeVar("S", bound=Hashable)


def fell(found: Inductive[S]) -> list[str]:
    return [broken.name for broken in found.broken]


# --- the cache -----------------------------------------------------------------------------

CHOICES = {
    "the miniature's": MINIATURE,
    "the last token is computed": evolve(MINIATURE, hit_cap=HitCap.LAST_TOKEN),
    "the newest copy, head first": evolve(
        MINIATURE,
        hit_cap=HitCap.LAST_TOKEN,
        lookup=Lookup.NEWEST,
        free_walk=FreeWalk.HEAD_FIRST,
    ),
    "vLLM's": evolve(VLLM_0_33, null_block=False),
}


@pytest.mark.parametrize("policy", CHOICES.values(), ids=CHOICES.keys())
def test_a_cache_keeps_its_books_from_any_state(policy: Policy) -> None:
    """3 blocks of 2 tokens, 2 slots, 4 texts: 392 states keep OWN, IDX, CON and LEN, of which 74
    can be reached by the miniature, and from each every allocation, free and clear does too."""
    universe = evolve(CACHES["cache"], machine=evolve(CACHES["cache"].machine, policy=policy))
    found = inductive(universe)
    assert found.holds is True
    assert found.states == 392
    reached = search(CacheSystem(universe.machine, universe.texts, Symmetry.BLOCKS)).graph.keys
    every = set(universe.states(frozenset(universe.properties)))
    assert set(reached) < every
    if policy is MINIATURE:
        assert len(reached) == 74


def test_what_each_property_of_a_cache_needs() -> None:
    """Who owns a block and what can be found stand alone, but together; what a table spells needs
    both. How long a table is needs nothing, and nothing needs it."""
    table = {row: fell(found) for row, found in needs(CACHES["cache-small"]).items()}
    assert table == {
        None: [],
        "OWN": ["CON", RAISES],
        "IDX": ["OWN", "CON", RAISES],
        "CON": [],
        "LEN": [],
    }


def test_nothing_is_found_where_nothing_is_shared() -> None:
    machine = CacheMachine(2, 1, 2, evolve(MINIATURE, sharing=Sharing.OFF))
    found = inductive(AllCaches(machine, ((0,), (0, 0))), ("IDX",))
    assert found.holds is True
    assert found.states == 13


# --- the serving machine -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "states", "reachable"),
    [("full-blocks", 382, 32), ("partial-blocks", 354, 20), ("at-schedule", 354, 17)],
)
def test_the_registered_properties_and_one_more_are_inductive(
    name: str, states: int, reachable: int
) -> None:
    universe = SERVING[name]
    found = inductive(universe)
    assert found.holds is True
    assert found.states == states
    system = universe.system
    reached = map(system.restore, search(system).graph.keys)
    keys = {system.canonical(universe.normal(s)) for s in reached if not s.in_flight}
    every = {system.canonical(s) for s in universe.states(frozenset(universe.properties))}
    assert len(keys) == reachable
    assert keys < every


def test_the_registered_properties_alone_are_not() -> None:
    """Two requests share a block that is not full: whichever fills it first publishes it, and the
    other finds it published. So it has to be assumed that only what has a key is shared."""
    found = inductive(SERVING["partial-blocks"], ("OWN-4",))
    assert fell(found) == ["PUB-1", RAISES]
    first = found.broken[0]
    assert first.action == Schedule()
    a, b = first.before.running
    assert set(a.table) & set(b.table)
    assert "block" in found.broken[1].what


def test_where_all_blocks_are_full_nothing_has_to_be_assumed_besides() -> None:
    assert inductive(SERVING["full-blocks"], ("OWN-4",)).holds is True


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ("IDX-1", []),
        ("IDX-2", [RAISES]),
        ("PUB-1", [RAISES]),
        ("EVI-1", []),
        ("CON-1", ["CON-3"]),
    ],
)
def test_what_needs_what(without: str, expected: list[str]) -> None:
    """With blocks that need not be full: what falls if one property is not assumed."""
    found = inductive(SERVING["partial-blocks"], (without,))
    assert found.ended is Ended.EXHAUSTED
    assert fell(found) == expected


OWNED = {
    "OWN-1": {"CON-1", "OWN-2", "OWN-3", "TAB-1", "PUB-1", "OWN-4", RAISES},
    "OWN-2": {"OWN-1", "OWN-3", "TAB-1", "PUB-1", "OWN-4", RAISES},
    "CON-3": {"CON-1"},
}


@pytest.mark.slow
@unless_asked
@pytest.mark.parametrize("without", OWNED)
def test_what_needs_the_ownership_of_blocks(without: str) -> None:
    """With blocks that are all full."""
    found = inductive(SERVING["full-blocks"], (without,))
    assert found.ended is Ended.EXHAUSTED
    assert set(fell(found)) == OWNED[without]


OWNED_PARTLY = {
    "OWN-1": (None, {"CON-1", "OWN-2", "OWN-3", "PUB-1", "OWN-4", "forgotten", RAISES}),
    "OWN-2": (None, {"OWN-1", "OWN-3", RAISES}),
    "OWN-3": (3_000, {"OWN-1", "OWN-2"}),
    "TAB-1": (8_000, {"CON-1", "CON-3"}),
}


@pytest.mark.slow
@unless_asked
@pytest.mark.parametrize("without", OWNED_PARTLY)
def test_what_needs_ownership_and_tables(without: str) -> None:
    """With blocks that need not be full; of two, as much as a minute allows."""
    states, expected = OWNED_PARTLY[without]
    found = inductive(SERVING["partial-blocks"], (without,), limits=Limits(states=states))
    assert set(fell(found)) == expected


@pytest.mark.slow
@unless_asked
@pytest.mark.parametrize(("name", "states"), [("two-tokens", 2_047), ("miniature", 1_219)])
def test_larger_universes(name: str, states: int) -> None:
    found = inductive(SERVING[name])
    assert found.holds is True
    assert found.states == states


def test_a_limit_leaves_it_open() -> None:
    found = inductive(SERVING["full-blocks"], limits=Limits(states=100))
    assert found.ended is Ended.STATES
    assert found.holds is None


def test_drafts_and_priorities_are_not_enumerated() -> None:
    for axis in ("drafts", "priority"):
        with pytest.raises(ScopeError, match="not enumerated"):
            AllStates(serving("tiny", axis).system)
