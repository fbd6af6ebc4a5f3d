"""Exhaustive search: what it counts, what it keeps, where it stops, and that names do not matter.

The tiny pool is a yardstick: the same machine, written for spin, TLC and Quint, has exactly these
numbers of states, transitions and levels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from itertools import permutations
from typing import TypeVar

import pytest
from attrs import evolve, frozen

from servecheck.explore.cache import CacheSystem, EncodedCache, Symmetry, by_appearance, renamed
from servecheck.explore.errors import ScopeError
from servecheck.explore.scopes import (
    POOLS,
    SMALL_TEXTS,
    TINY_POOL,
    Counts,
    ServingScope,
    named,
    scopes,
)
from servecheck.explore.search import Ended, Found, Limits, Seen, search, walk
from servecheck.explore.serving import Serving
from servecheck.explore.system import Moved, Raw
from servespec.actions import Submit
from servespec.cache import IDLE, Cache
from servespec.config import Config
from servespec.machine import Action, Machine
from servespec.policy import (
    MINIATURE,
    VLLM_0_33,
    FreeWalk,
    HitCap,
    Lookup,
    Policy,
    Sharing,
    Unhashed,
)

SMALL, FULL = POOLS
K = TypeVar("K", bound=Hashable)

unless_asked = pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"), reason="takes a minute: set SERVECHECK_SLOW to run it"
)


def counts(found: Found[K]) -> Counts:
    assert found.exhausted
    return Counts(found.states, found.transitions, found.depth)


# --- the yardstick -------------------------------------------------------------------------


def test_the_tiny_pool_counts_what_others_count() -> None:
    assert counts(search(SMALL.system())) == SMALL.counts == Counts(1_070, 7_142, 9)


def test_blocks_renamed_only() -> None:
    found = search(SMALL.system(Symmetry.BLOCKS))
    assert counts(found) == Counts(3_256, 22_577, 9)


@pytest.mark.slow
@unless_asked
def test_every_block_has_its_own_name() -> None:
    """24 times the states and steps of blocks renamed: no state is its own renaming."""
    assert counts(search(SMALL.system(Symmetry.NONE))) == SMALL.raw == Counts(78_144, 541_848, 15)


def test_all_texts_encoded() -> None:
    assert counts(search(FULL.encoded())) == FULL.counts == Counts(28_644, 498_172, 9)


@pytest.mark.parametrize(
    ("blocks", "slots", "there"),
    [
        (5, 3, Counts(3_331, 22_748, 11)),
        (6, 3, Counts(9_637, 66_126, 13)),
        (5, 4, Counts(5_058, 39_446, 12)),
        (6, 4, Counts(14_550, 114_698, 14)),
    ],
)
def test_wider_scopes(blocks: int, slots: int, there: Counts) -> None:
    machine = evolve(TINY_POOL, num_blocks=blocks, num_slots=slots)
    assert counts(search(EncodedCache(machine, SMALL_TEXTS))) == there


# --- the encoding says what the specification says -----------------------------------------

CHOICES = {
    "the miniature's": MINIATURE,
    "vLLM's": VLLM_0_33,
    "tables let go from their first block": evolve(MINIATURE, free_walk=FreeWalk.HEAD_FIRST),
    "unhashed blocks to the head": evolve(MINIATURE, unhashed=Unhashed.TO_HEAD),
    "the last token is computed, so there are copies": evolve(MINIATURE, hit_cap=HitCap.LAST_TOKEN),
    "the newest copy answers": evolve(MINIATURE, hit_cap=HitCap.LAST_TOKEN, lookup=Lookup.NEWEST),
    "nothing is shared": evolve(MINIATURE, sharing=Sharing.OFF),
}


@pytest.mark.parametrize("policy", CHOICES.values(), ids=CHOICES.keys())
def test_what_is_encoded_and_moved_is_moved_and_encoded(policy: Policy) -> None:
    machine = evolve(TINY_POOL, num_blocks=4, num_slots=2, policy=policy)
    spec = CacheSystem(machine, SMALL_TEXTS, Symmetry.BLOCKS)
    code = EncodedCache(machine, SMALL_TEXTS, Symmetry.BLOCKS)
    found = search(spec)
    for state in found.graph.keys:
        encoded = code.encode(state)
        offered = [code.action(number) for number in code.enabled(encoded)]
        assert offered == list(spec.enabled(state))
        for number in code.enabled(encoded):
            moved = spec.apply(state, code.action(number)).state
            assert code.apply(encoded, number).state == code.encode(moved)
    for symmetry in (Symmetry.BLOCKS, Symmetry.SLOTS):
        of_spec = search(CacheSystem(machine, SMALL_TEXTS, symmetry))
        assert counts(of_spec) == counts(search(EncodedCache(machine, SMALL_TEXTS, symmetry)))


# --- names do not matter -------------------------------------------------------------------


def test_renaming_blocks_of_a_cache_changes_no_step() -> None:
    """What is done to a renamed cache comes to the same, renamed: so one of each is enough."""
    system = SMALL.system()
    for state in search(system).graph.keys:
        other = renamed(state, (1, 3, 0, 2))
        assert set(system.enabled(state)) == set(system.enabled(other))
        for action in system.enabled(state):
            one, two = system.apply(state, action).state, system.apply(other, action).state
            assert by_appearance(one) == by_appearance(two)


def test_no_cache_is_its_own_renaming() -> None:
    for state in search(SMALL.system()).graph.keys:
        assert len({renamed(state, order) for order in permutations(range(4))}) == 24


TINY = tuple(s for s in named("serving-tiny") if isinstance(s, ServingScope))


@pytest.mark.parametrize("scope", TINY, ids=[scope.name for scope in TINY])
def test_a_key_is_read_back(scope: ServingScope) -> None:
    """A representative has the key that it was read from, and nothing of the state is lost."""
    system = scope.system
    for key in search(system, limits=Limits(states=500)).graph.keys:
        assert system.canonical(system.restore(key)) == key


@pytest.mark.parametrize("axis", ["chunks", "after-step", "namespaces", "miniature"])
def test_raw_states_are_the_canonical_ones_under_other_names(axis: str) -> None:
    """The search without symmetry finds more states, and no other: up to names they are the same
    set. Each of them offers the same steps."""
    (scope,) = named(f"serving-tiny/{axis}")
    assert isinstance(scope, ServingScope)
    system = evolve(scope.system, resets=(), kinds=scope.system.kinds[:1])
    raw, canonical = search(Raw(system)), search(system)
    assert raw.exhausted
    assert raw.states > canonical.states
    assert raw.depth >= canonical.depth
    assert {system.canonical(state) for state in raw.graph.keys} == set(canonical.graph.keys)
    sizes = dict(zip(canonical.graph.keys, map(offered(system), canonical.graph.keys), strict=True))
    for state in raw.graph.keys[::7]:
        assert len(list(system.enabled(state))) == sizes[system.canonical(state)]


def offered(system: Serving) -> Callable[[bytes], int]:
    return lambda key: len(list(system.enabled(system.restore(key))))


def test_tokens_are_renamed_where_their_names_carry_no_meaning() -> None:
    """Prompts 01 and 10: half of the states say the same with 0 and 1 exchanged."""
    machine = Machine(Config(4, 2, 4, 3, 2), VLLM_0_33)
    two = (Submit("", (0, 1), 2), Submit("", (1, 0), 2))
    apart = Serving(machine, two, 2, tokens=(0, 1))
    alike = evolve(apart, any_token=True)
    many, few = search(apart), search(alike)
    assert few.states < many.states <= 2 * few.states
    assert {alike.canonical(apart.restore(key)) for key in many.graph.keys} == set(few.graph.keys)


def test_a_number_that_does_not_fit_is_refused() -> None:
    machine = Machine(Config(300, 2, 4, 3, 2), VLLM_0_33)
    with pytest.raises(ScopeError, match="0 to 255"):
        search(Serving(machine, (Submit("", (0,), 1),), 1))


# --- the search ----------------------------------------------------------------------------


@pytest.mark.parametrize("scope", TINY, ids=[scope.name for scope in TINY])
def test_a_tiny_scope_counts_what_it_is_known_to_count(scope: ServingScope) -> None:
    assert counts(search(scope.system)) == scope.counts


LARGER = tuple(
    scope
    for name, scope in scopes().items()
    if isinstance(scope, ServingScope) and not name.startswith("serving-tiny")
)


@pytest.mark.slow
@unless_asked
@pytest.mark.parametrize("scope", LARGER, ids=[scope.name for scope in LARGER])
def test_a_larger_scope_counts_what_it_is_known_to_count(scope: ServingScope) -> None:
    assert counts(search(scope.system)) == scope.counts


def test_several_processes_find_the_same_in_the_same_order() -> None:
    (scope,) = named("serving-tiny/priority")
    assert isinstance(scope, ServingScope)
    one = search(scope.system, edges=True)
    two = search(scope.system, edges=True, processes=2)
    assert one.graph.keys == two.graph.keys
    assert one.graph.edges == two.graph.edges
    assert (one.transitions, one.depth) == (two.transitions, two.depth)


@frozen
class Counter:
    """A number that can be raised by one or doubled."""

    def initial(self) -> int:
        return 1

    def enabled(self, state: int) -> Iterator[str]:
        yield "one more"
        yield "twice"

    def apply(self, state: int, action: str) -> Reached:
        return Reached(state + 1 if action == "one more" else state * 2)

    def canonical(self, state: int) -> int:
        return state

    def restore(self, key: int) -> int:
        return key


@frozen
class Reached:
    state: int


@frozen
class NotThirteen:
    def state(self, state: int) -> Seen:
        return Seen((("thirteen", f"{state} is unlucky"),) if state == 13 else ())

    def step(self, before: int, action: str, moved: Moved[object]) -> Seen:
        return Seen((), (action,))


def test_a_fall_is_reached_on_a_shortest_way() -> None:
    """1, 2, 3, 6, 12, 13: no five steps lead there."""
    found = search(Counter(), NotThirteen(), stops=lambda name: name == "thirteen")
    assert found.ended is Ended.FELL
    (fallen,) = found.falls
    assert fallen.what == "13 is unlucky"
    way = [found.graph.keys[number] for number in found.graph.way(fallen.source)]
    assert way == [1, 2, 3, 6, 12, 13]
    actions = [action for action, _ in walk(Counter(), way)]
    assert actions == ["one more", "one more", "twice", "twice", "one more"]
    assert found.counts["twice"] == found.counts["one more"]


@pytest.mark.parametrize(
    ("limits", "ended"),
    [
        (Limits(states=100), Ended.STATES),
        (Limits(depth=5), Ended.DEPTH),
        (Limits(seconds=0), Ended.SECONDS),
        (Limits(megabytes=1), Ended.MEMORY),
    ],
)
def test_a_limit_that_is_reached_is_told(limits: Limits, ended: Ended) -> None:
    """The numbers never end, so no search of them says that something holds."""
    found = search(Counter(), limits=limits)
    assert found.ended is ended
    assert not found.exhausted


def test_an_interrupted_search_tells_what_it_knows() -> None:
    seen: list[int] = []

    @frozen
    class Impatient:
        def state(self, state: int) -> Seen:
            seen.append(state)
            if len(seen) == 3_000:
                raise KeyboardInterrupt
            return Seen()

        def step(self, before: int, action: str, moved: Moved[object]) -> Seen:
            return Seen()

    found = search(Counter(), Impatient())
    assert found.ended is Ended.INTERRUPTED
    assert found.states > 0


def test_a_way_is_one_run_of_the_machine() -> None:
    """Representatives have names of their own; the way through them has one name for one thing."""
    (scope,) = named("serving-tiny/chunks")
    assert isinstance(scope, ServingScope)
    found = search(scope.system)
    keys = [found.graph.keys[number] for number in found.graph.way(found.states - 1)]
    machine, state = scope.system.machine, scope.system.machine.initial()
    actions: list[Action] = []
    for action, after in walk(scope.system, keys):
        state = machine.apply(state, action).state
        actions.append(action)
        assert state == after
    assert len(actions) == found.depth
    assert scope.system.canonical(state) == keys[-1]


def test_an_unknown_scope_names_near_ones() -> None:
    with pytest.raises(ScopeError, match="serving-tiny"):
        named("serving-tny")


# --- on every state of the tiny pool -------------------------------------------------------


def everywhere() -> Iterator[Cache]:
    yield from search(SMALL.system(Symmetry.BLOCKS)).graph.keys


def test_a_block_is_free_or_held() -> None:
    """Each block is in one place: once in the free queue, or in a table, and there once; its count
    is the number of tables that hold it."""
    for state in everywhere():
        tables = [slot.table for slot in state.slots]
        held = [block for table in tables for block in table]
        assert sorted({*state.pool.free, *held}) == [0, 1, 2, 3]
        assert not set(state.pool.free) & set(held)
        assert all(len(set(table)) == len(table) for table in tables)
        assert [block.ref_count for block in state.pool.blocks] == [held.count(b) for b in range(4)]


def test_the_index_names_the_blocks_with_that_key() -> None:
    """All of them and no other; and in this scope there is never a second copy."""
    for state in everywhere():
        keys = [(block.key, (b,)) for b, block in enumerate(state.pool.blocks) if block.key]
        assert dict(keys) == state.pool.index.copies
        assert len(dict(keys)) == len(keys)


def test_a_table_spells_its_text() -> None:
    """Its full blocks carry the keys of the text; a last block that is not full has none."""
    for state in everywhere():
        for slot in state.slots:
            if slot == IDLE:
                continue
            keys = [state.pool.blocks[block].key for block in slot.table]
            full = len(slot.text) // 2
            runs = [key.runs() for key in keys[:full] if key is not None]
            pairs = tuple(slot.text[i : i + 2] for i in range(0, 2 * full, 2))
            assert runs == [pairs[: i + 1] for i in range(full)]
            assert keys[full:] == [None] * (len(slot.text) % 2)


def without_its_beginning(state: Cache) -> bool:
    """Something is cached that no look-up reaches, since what stands before it is not."""
    known = state.pool.index.copies
    return any(key.parent not in known for key in known if key.parent is not None)


def test_what_is_cached_can_be_reached() -> None:
    """Tables are let go from the end, so an end is evicted before its beginning; let go from the
    start, some are left without it."""
    assert not any(map(without_its_beginning, everywhere()))
    other = evolve(TINY_POOL, policy=evolve(MINIATURE, free_walk=FreeWalk.HEAD_FIRST))
    assert any(map(without_its_beginning, search(CacheSystem(other, SMALL_TEXTS)).graph.keys))
