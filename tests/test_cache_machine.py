"""Stories about the cache alone: texts are allocated into slots, freed, and forgotten."""

from __future__ import annotations

import pytest

from servespec.cache import IDLE, Allocate, Cache, CacheAction, CacheMachine, Clear, Free, Slot
from servespec.chain import Namespace, keys
from servespec.errors import ActionDisabled, ConfigError
from servespec.events import BlockRemoved, BlockStored, CacheCleared
from servespec.policy import VLLM_0_33

MACHINE = CacheMachine(6, 2, 2, VLLM_0_33)
"""Five blocks of two tokens, and two slots: block 0 is kept out."""
SALTED = Namespace(salt="s")


def after(*actions: CacheAction) -> Cache:
    state = MACHINE.initial()
    for action in actions:
        state = MACHINE.apply(state, action).state
    return state


def test_the_smallest_cache_has_one_block_of_one_token_and_one_slot() -> None:
    """Beside the null block: anything smaller is refused."""
    assert CacheMachine(2, 1, 1, VLLM_0_33).initial().pool.free == (1,)
    for sizes in ((1, 1, 1), (2, 0, 1), (2, 1, 0)):
        with pytest.raises(ConfigError):
            CacheMachine(*sizes, VLLM_0_33)


def test_a_text_goes_into_the_lowest_idle_slot_and_tells_what_is_stored() -> None:
    """Given a salted text of five tokens; when it is allocated, then it holds three blocks, of
    which the two full ones are stored, in its namespace."""
    moved = MACHINE.apply(MACHINE.initial(), Allocate((1, 2, 3, 4, 5), SALTED))
    first, second = keys(SALTED, (1, 2, 3, 4), 2)
    assert moved.events == (BlockStored(1, first, None), BlockStored(2, second, first))
    assert moved.state.slots == (Slot((1, 2, 3, 4, 5), (1, 2, 3), SALTED), IDLE)
    assert moved.state.pool.free == (4, 5)


def test_what_is_cached_is_shared_and_the_rest_is_taken() -> None:
    """Given a text of two full blocks and a token more; when it is allocated once more, then both
    full blocks are shared and one is taken; another namespace shares nothing."""
    once = after(Allocate((1, 2, 3, 4, 5)))
    assert MACHINE.hits(once, Allocate((1, 2, 3, 4, 5))) == (1, 2)
    assert MACHINE.hits(once, Allocate((1, 2, 3, 4, 5), SALTED)) == ()
    assert MACHINE.demand(once, Allocate((1, 2, 3, 4, 5), SALTED)) == 3
    twice = MACHINE.apply(once, Allocate((1, 2, 3, 4, 5)))
    assert twice.events == ()
    assert [slot.table for slot in twice.state.slots] == [(1, 2, 3), (1, 2, 4)]


def test_an_evicted_block_is_told_before_what_is_stored_in_its_place() -> None:
    """Given a text of one full block that was freed; when another one takes all five blocks, then
    the old one is removed, and four blocks are stored: the last one is not full."""
    freed = after(Allocate((1, 2)), Free(0))
    assert freed.slots == (IDLE, IDLE)
    moved = MACHINE.apply(freed, Allocate(tuple(range(10, 19))))
    (old,) = keys(Namespace(), (1, 2), 2)
    assert moved.events[0] == BlockRemoved(1, old)
    assert [type(event) for event in moved.events[1:]] == [BlockStored] * 4


def test_a_cache_that_is_cleared_keeps_its_slots_and_forgets() -> None:
    freed = after(Allocate((1, 2)), Free(0))
    moved = MACHINE.apply(freed, Clear())
    assert moved.events == (CacheCleared(),)
    assert moved.state.slots == (IDLE, IDLE)
    assert moved.state.pool.index.copies == {}
    assert MACHINE.hits(moved.state, Allocate((1, 2, 3))) == ()


def test_what_is_enabled_fits_and_what_is_held_can_be_freed() -> None:
    """Given two of five blocks held; then a text of three blocks is allowed, though it takes all
    that are free, and one of four is not; with no slot idle none is."""
    fits, not_quite = (5, 6, 7, 8, 9), (5, 6, 7, 8, 9, 10, 11)
    one = after(Allocate((1, 2, 3)))
    assert list(MACHINE.enabled(one, (fits, not_quite))) == [Allocate(fits), Free(0)]
    two = MACHINE.apply(one, Allocate((5,))).state
    assert list(MACHINE.enabled(two, (fits, (5,)))) == [Free(0), Free(1)]


def test_what_is_no_action_is_told() -> None:
    state = MACHINE.initial()
    for wrong, what in ((Free(0), "slot 0 is idle"), (Free(9), "slot 9"), (None, "no action")):
        with pytest.raises(ActionDisabled, match=what):
            MACHINE.apply(state, wrong)  # type: ignore[arg-type]
