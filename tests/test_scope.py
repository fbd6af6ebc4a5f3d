"""A tiny cache searched to its end, against counts that other tools agree on.

Four blocks of two tokens, three slots, the miniature's policy, eight prompts: the same machine,
written for spin, TLC and Quint, has exactly these numbers of states and steps. On every state, the
invariants of who owns a block.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import chain, permutations

import pytest
from attrs import evolve, frozen

from servespec.cache import Cache, CacheMachine
from servespec.chain import Chain, Tokens
from servespec.policy import MINIATURE, FreeWalk
from servespec.pool import Index, Pool

SMALL: tuple[Tokens, ...] = tuple(
    tuple(map(int, text)) for text in ("0", "00", "01", "000", "0000", "0001", "110", "1111")
)
TINY = CacheMachine(num_blocks=4, block_size=2, num_slots=3, policy=MINIATURE)
HEAD_FIRST = evolve(TINY, policy=evolve(MINIATURE, free_walk=FreeWalk.HEAD_FIRST))

unless_asked = pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"), reason="takes a minute: set SERVECHECK_SLOW to run it"
)

# --- states up to names --------------------------------------------------------------------


def renamed(state: Cache, order: tuple[int, ...]) -> Cache:
    """The same cache, block `order[i]` being called i."""
    name = {block: i for i, block in enumerate(order)}
    copies = state.pool.index.copies.items()
    pool = Pool(
        tuple(state.pool.blocks[block] for block in order),
        tuple(name[block] for block in state.pool.free),
        Index({key: tuple(name[block] for block in blocks) for key, blocks in copies}),
    )
    return Cache(pool, tuple(tuple(name[block] for block in table) for table in state.slots))


def by_appearance(state: Cache) -> Cache:
    """Blocks numbered as they appear in the tables, slot by slot, and then in the free queue: every
    block is in one or the other."""
    return renamed(state, tuple(dict.fromkeys(chain(*state.slots, state.pool.free))))


@cache
def written(key: Chain | None) -> tuple[Tokens, ...]:
    return () if key is None else key.runs()


def in_full(state: Cache) -> tuple[object, ...]:
    """All that a state is, in an order."""
    return state.slots, state.pool.free, [written(block.key) for block in state.pool.blocks]


def by_contents(state: Cache) -> Cache:
    """Besides, slots in the order that makes the whole the smallest."""
    orders = permutations(state.slots)
    return min((by_appearance(Cache(state.pool, slots)) for slots in orders), key=in_full)


def as_it_is(state: Cache) -> Cache:
    return state


# --- the search ----------------------------------------------------------------------------


@frozen
class Found:
    states: int
    steps: int
    """Enabled actions of all states; those that lead to the same state count each."""
    depth: int


def search(machine: CacheMachine, stands_for: Callable[[Cache], Cache]) -> tuple[Found, set[Cache]]:
    """Breadth first, from the initial state to the last."""
    seen = {stands_for(machine.initial())}
    level, steps, depth = list(seen), 0, -1
    while level:
        depth += 1
        reached = []
        for state in level:
            for action in machine.enabled(state, SMALL):
                steps += 1
                after = stands_for(machine.apply(state, action).state)
                if after not in seen:
                    seen.add(after)
                    reached.append(after)
        level = reached
    return Found(len(seen), steps, depth), seen


searched = cache(search)


def test_blocks_renamed() -> None:
    assert searched(TINY, by_appearance)[0] == Found(states=3_256, steps=22_577, depth=9)


def test_blocks_renamed_and_slots_reordered() -> None:
    assert searched(TINY, by_contents)[0] == Found(states=1_070, steps=7_142, depth=9)


@pytest.mark.slow
@unless_asked
def test_every_block_has_its_own_name() -> None:
    """24 times the states and steps of blocks renamed: no state is its own renaming."""
    assert search(TINY, as_it_is)[0] == Found(states=78_144, steps=541_848, depth=15)


@pytest.mark.slow
@unless_asked
@pytest.mark.parametrize(
    ("blocks", "slots", "found"),
    [
        (5, 3, Found(states=3_331, steps=22_748, depth=11)),
        (6, 3, Found(states=9_637, steps=66_126, depth=13)),
        (5, 4, Found(states=5_058, steps=39_446, depth=12)),
        (6, 4, Found(states=14_550, steps=114_698, depth=14)),
    ],
)
def test_wider_scopes(blocks: int, slots: int, found: Found) -> None:
    assert search(evolve(TINY, num_blocks=blocks, num_slots=slots), by_contents)[0] == found


def test_another_choice_gives_other_numbers() -> None:
    """Tables let go from their first block on."""
    assert searched(HEAD_FIRST, by_contents)[0] != searched(TINY, by_contents)[0]


# --- names do not matter -------------------------------------------------------------------


def test_renaming_changes_no_step() -> None:
    """What is done to a renamed cache comes to the same, renamed: so one of each is enough."""
    for state in searched(TINY, by_contents)[1]:
        other = renamed(state, (1, 3, 0, 2))
        assert set(TINY.enabled(state, SMALL)) == set(TINY.enabled(other, SMALL))
        for action in TINY.enabled(state, SMALL):
            one, two = TINY.apply(state, action).state, TINY.apply(other, action).state
            assert by_appearance(one) == by_appearance(two)


def test_no_state_is_its_own_renaming() -> None:
    for state in searched(TINY, by_contents)[1]:
        assert len({renamed(state, order) for order in permutations(range(4))}) == 24


# --- on every state ------------------------------------------------------------------------


def everywhere() -> set[Cache]:
    return searched(TINY, by_appearance)[1]


def test_a_block_is_free_or_held() -> None:
    """Each block is in one place: once in the free queue, or in a table, and there once."""
    for state in everywhere():
        held = {block for table in state.slots for block in table}
        assert sorted((*state.pool.free, *held)) == [0, 1, 2, 3]
        assert all(len(set(table)) == len(table) for table in state.slots)


def test_a_count_is_the_number_of_tables() -> None:
    for state in everywhere():
        holders = Counter(chain(*state.slots))
        assert [block.ref_count for block in state.pool.blocks] == [holders[b] for b in range(4)]


def test_the_index_names_the_blocks_with_that_key() -> None:
    """All of them and no other; and in this scope there is never a second copy."""
    for state in everywhere():
        keys = [(block.key, (b,)) for b, block in enumerate(state.pool.blocks) if block.key]
        assert dict(keys) == state.pool.index.copies
        assert len(dict(keys)) == len(keys)


def test_a_table_spells_one_text() -> None:
    """The keys of its blocks continue each other, and only the last block may have none."""
    for state in everywhere():
        for table in filter(None, state.slots):
            keys = [state.pool.blocks[block].key for block in table]
            full = [key for key in keys if key is not None]
            assert full == keys[: len(full)]
            assert len(keys) - len(full) <= 1
            assert [key.parent for key in full] == [None, *full][: len(full)]


def without_its_beginning(state: Cache) -> bool:
    """Something is cached that no look-up reaches, since what stands before it is not."""
    known = state.pool.index.copies
    return any(key.parent not in known for key in known if key.parent is not None)


def test_what_is_cached_can_be_reached() -> None:
    """Tables are let go from the end, so an end is evicted before its beginning; let go from the
    start, some are left without it."""
    assert not any(map(without_its_beginning, everywhere()))
    assert any(map(without_its_beginning, searched(HEAD_FIRST, by_contents)[1]))
