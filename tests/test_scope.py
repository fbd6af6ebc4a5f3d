"""A tiny cache searched to its end, against counts that other tools agree on.

Four blocks of two tokens, three slots, the miniature's policy, eight prompts: the same machine,
written for spin, TLC and Quint, has exactly these numbers of states and steps. On every state, the
invariants of who owns a block.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import chain, permutations

import pytest
from attrs import frozen

from servespec.cache import Cache, CacheMachine
from servespec.chain import Chain, Tokens
from servespec.policy import MINIATURE
from servespec.pool import Index, Pool

SMALL: tuple[Tokens, ...] = tuple(
    tuple(map(int, text)) for text in ("0", "00", "01", "000", "0000", "0001", "110", "1111")
)
TINY = CacheMachine(num_blocks=4, block_size=2, num_slots=3, policy=MINIATURE)

slow = pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"), reason="takes minutes: set SERVECHECK_SLOW to run it"
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


def in_full(state: Cache) -> object:
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


searched = cache(partial(search, TINY))


def test_blocks_renamed() -> None:
    assert searched(by_appearance)[0] == Found(states=3_256, steps=22_577, depth=9)


def test_blocks_renamed_and_slots_reordered() -> None:
    assert searched(by_contents)[0] == Found(states=1_070, steps=7_142, depth=9)
