"""Stories: each of the rules 1 to 37 of vLLM 0.33.0, and the surprises that follow from them.

Unless a story says otherwise there are 8 blocks of 2 tokens, numbered 1 to 8 (block 0 is the null
block), texts have at most 16 tokens, and a pass has 16 tokens and 4 seats. Prompts are made of
small numbers, what a step samples is 100, drafts are 7, 8 and 9. T is the length of a text, C the
part of it that is computed. A pass reads "a:2 b:1": two tokens of a, then one of b.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from attrs import define, evolve, field

import servespec.cache
import servespec.machine
import servespec.rules
import servespec.scheduler
from servespec import pool as blocks
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import PUBLIC, Chain, Namespace, Token, Tokens, keys, link
from servespec.config import Config
from servespec.errors import ActionDisabled, ConfigError
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Delivered,
    Event,
    Finished,
    PoolEvent,
    Preempted,
    Reason,
    Refused,
    Skipped,
)
from servespec.machine import Machine
from servespec.plan import PADDING, Plan, Planned, State
from servespec.policy import VLLM_0_33, Admission, Policy, Sharing, prioritised
from servespec.pool import Blocks, Pool
from servespec.request import Request
from servespec.rules import RULES, Rule

PRIORITY = prioritised(VLLM_0_33)
UNCHUNKED = evolve(VLLM_0_33, chunked_prefill=False)
UNCACHED = evolve(VLLM_0_33, sharing=Sharing.OFF)

SIZES: dict[str, Any] = {
    "num_blocks": 9,
    "block_size": 2,
    "max_model_len": 16,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 4,
}

EIGHT: Blocks = (1, 2, 3, 4, 5, 6, 7, 8)
"""All that can be handed out."""

SAMPLED: Token = 100


@define
class Loop:
    """A machine, where it stands, and the events of its last action."""

    machine: Machine
    state: State = field(init=False)
    events: tuple[Event, ...] = ()

    def __attrs_post_init__(self) -> None:
        self.state = self.machine.initial()

    # --- what is done ---

    def do(self, action: Action) -> tuple[Event, ...]:
        moved = self.machine.apply(self.state, action)
        self.state, self.events = moved.state, moved.events
        return moved.events

    def submit(
        self,
        name: str,
        prompt: Tokens,
        max_tokens: int = 9,
        *,
        priority: int = 0,
        with_last: bool = False,
        stop: Tokens = (),
        salt: str | None = None,
    ) -> None:
        space = Namespace(salt=salt)
        self.do(Submit(name, prompt, max_tokens, space, priority, stop, with_last))

    def plan(self) -> str:
        self.do(Schedule())
        return " ".join(f"{entry.id}:{len(entry.tokens)}" for entry in self.in_flight.entries)

    def run(
        self, tokens: dict[str, Tokens] | None = None, drafts: dict[str, Tokens] | None = None
    ) -> tuple[Event, ...]:
        """The step runs: who is due a token gets 100 and no drafts, or what is given for it."""
        tokens, drafts = tokens or {}, drafts or {}
        due = [entry.id for entry in self.in_flight.entries if entry.yields and not entry.cancelled]
        return self.do(
            Complete(
                tuple(Output(n, tokens.get(n, (SAMPLED,)), drafts.get(n, ())) for n in due),
            )
        )

    def step(self) -> str:
        """A pass and its output; the events are those of both."""
        passed, told = self.plan(), self.events
        self.events = told + self.run()
        return passed

    def leave_behind(self, name: str, prompt: Tokens) -> None:
        """A request comes, gets its one token, and leaves its full blocks in the cache."""
        self.submit(name, prompt, max_tokens=1)
        self.step()
        assert self.state.find(name) is None

    # --- what is seen ---

    @property
    def in_flight(self) -> Plan:
        return self.state.in_flight[0]

    def entry(self, name: str) -> Planned:
        found = self.in_flight.entry(name)
        assert found is not None
        return found

    def request(self, name: str) -> Request:
        found = self.state.find(name)
        assert found is not None
        return found

    def table(self, name: str) -> Blocks:
        return self.request(name).table

    def computed(self, name: str) -> int:
        return self.request(name).computed

    def hit_tokens(self, name: str) -> int:
        return next(e.hit_tokens for e in self.events if isinstance(e, Admitted) and e.id == name)

    @property
    def pool(self) -> Pool:
        return self.state.pool

    @property
    def free(self) -> Blocks:
        return self.pool.free

    @property
    def running(self) -> str:
        return " ".join(request.id for request in self.state.running)

    @property
    def waiting(self) -> str:
        return " ".join(request.id for request in self.state.waiting)

    @property
    def preempted(self) -> str:
        return " ".join(event.id for event in self.events if isinstance(event, Preempted))

    @property
    def passed_over(self) -> dict[str, Reason]:
        return {event.id: event.reason for event in self.events if isinstance(event, Skipped)}

    @property
    def cache_events(self) -> list[PoolEvent]:
        return [e for e in self.events if isinstance(e, BlockStored | BlockRemoved | CacheCleared)]

    @property
    def stored(self) -> Blocks:
        return tuple(e.block for e in self.events if isinstance(e, BlockStored))

    @property
    def removed(self) -> Blocks:
        return tuple(e.block for e in self.events if isinstance(e, BlockRemoved))

    @property
    def finished(self) -> dict[str, Reason]:
        return {event.id: event.reason for event in self.events if isinstance(event, Finished)}

    @property
    def delivered(self) -> dict[str, Tokens]:
        return {event.id: event.tokens for event in self.events if isinstance(event, Delivered)}

    def copies(self, *tokens: Token, salt: str | None = None) -> Blocks:
        """The blocks, oldest first, that answer to a text of whole blocks."""
        key = keys(Namespace(salt=salt), tokens, self.machine.config.block_size)[-1]
        return self.pool.index.copies.get(key, ())


def start(policy: Policy = VLLM_0_33, /, **sizes: float) -> Loop:
    return Loop(Machine(Config(**{**SIZES, **sizes}), policy))


# --- A. pool, hashes, publication ----------------------------------------------------------


def test_rule_01_nine_blocks_are_eight_usable_ones() -> None:
    """Given 9 blocks, the free queue is 1 … 8. When a text takes all 8, then block 0 is not among
    them and is never counted; when it leaves, all 8 are free again, with or without a hash."""
    loop = start()
    assert loop.free == EIGHT

    loop.submit("a", tuple(range(15)), max_tokens=1)
    assert loop.plan() == "a:15"
    assert loop.table("a") == EIGHT
    assert [block.ref_count for block in loop.pool.blocks] == [0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert [*loop.free] == []

    loop.run()
    assert loop.free == (8, 7, 6, 5, 4, 3, 2, 1)
    assert [block.ref_count for block in loop.pool.blocks] == [0] * 9
    assert [block.key is not None for block in loop.pool.blocks] == [False] + [True] * 7 + [False]


def test_rule_02_a_hash_stands_for_namespace_parent_and_tokens() -> None:
    """Given 1 2 3 4 5, then blocks 1 2 and 3 4 have hashes, the second over the first, and the
    third block gets its hash with the token that fills it. Another salt makes other hashes, also of
    later blocks; the same salt the same; and adapter and salt are two things. With caching off
    there are none."""
    loop = start()
    loop.submit("a", (1, 2, 3, 4, 5))
    first = link(PUBLIC, None, (1, 2))
    second = link(PUBLIC, first, (3, 4))
    assert loop.request("a").keys == (first, second)

    loop.step()
    assert loop.request("a").keys == (first, second, link(PUBLIC, second, (5, SAMPLED)))

    loop.submit("b", (1, 2, 3, 4), salt="s")
    loop.submit("c", (1, 2, 3, 4), salt="s")
    salted = link(Namespace(salt="s"), None, (1, 2))
    assert loop.request("b").keys == (salted, link(Namespace(salt="s"), salted, (3, 4)))
    assert loop.request("c").keys == loop.request("b").keys
    assert not set(loop.request("b").keys) & {first, second}
    assert {key.namespace for key in loop.request("b").keys} == {Namespace(salt="s")}
    spaces = (Namespace("a", "bc"), Namespace("ab", "c"), Namespace(None, "abc"), PUBLIC)
    assert len({keys(space, (1, 2), 2) for space in spaces}) == 4

    uncached = start(UNCACHED)
    uncached.submit("a", (1, 2, 3, 4, 5))
    assert uncached.request("a").keys == ()


def test_rule_03_fcfs_puts_the_preempted_at_the_head() -> None:
    """Given a, b and c with a block each and none left, when a needs two more, then c and after it
    b are preempted, each to the head: b waits before c. Then d comes, and waits behind both."""
    loop = start(num_blocks=4, num_speculative_tokens=3)
    for name, token in ("a", 1), ("b", 2), ("c", 3):
        loop.submit(name, (token,))
    assert loop.plan() == "a:1 b:1 c:1"
    loop.run(drafts={"a": (7, 8, 9)})

    assert loop.plan() == "a:4"
    assert loop.preempted == "c b"
    loop.submit("d", (4,))
    assert loop.waiting == "b c d"


def test_rule_03_priority_orders_by_priority_arrival_and_id() -> None:
    """Given priorities, then the smallest is served first, of equals the earliest, and of those
    that came at the same moment the smallest id. Who is preempted goes back by the same key."""
    loop = start(PRIORITY, num_blocks=4)
    loop.submit("x", (1, 2), priority=2)
    assert loop.step() == "x:2"
    loop.submit("late", (3, 4), priority=2)
    loop.submit("y", (3, 4), priority=1)
    loop.submit("m", (3, 4), priority=1, with_last=True)
    loop.submit("best", (3, 4), priority=0)
    assert loop.waiting == "best m y late"

    assert loop.step() == "x:1 best:2"  # x in blocks 1 and 2, best in 3, and m finds no room
    assert loop.plan() == "best:1"  # in one more block, and x gives way
    assert loop.preempted == "x"
    assert loop.waiting == "m y x late"


def test_rule_04_a_waiting_request_holds_nothing() -> None:
    """Given 1 2 cached in block 1, when a text that begins with it is looked up and finds no room,
    then it gets no block, no reference and no promise: when another text takes block 1, the next
    look finds nothing."""
    loop = start(num_blocks=5)
    loop.leave_behind("a", (1, 2))
    loop.submit("c", (5, 6, 7))
    loop.submit("b", (1, 2, 3, 4, 5, 6, 7))
    assert loop.plan() == "c:3"  # b: 3 blocks and the hit are 4, and 2 are free
    assert loop.passed_over == {"b": Reason.NO_ROOM}
    assert (loop.table("b"), loop.computed("b")) == ((), 0)
    assert loop.copies(1, 2) == (1,)
    assert loop.pool.blocks[1].ref_count == 0

    loop.run()
    removed = []
    for _ in range(4):  # tokens 4 to 7 of c: its blocks are 2, 3, 4 and, for the seventh, 1
        assert loop.step() == "c:1"
        removed.append(loop.removed)
    assert removed == [(), (), (), (1,)]
    loop.do(Abort("c"))
    assert loop.plan() == "b:7"
    assert loop.hit_tokens("b") == 0


def test_rule_05_blocks_are_taken_from_the_head_in_order() -> None:
    """Given the free queue 3 4 5 6 7 8 2 1, in which 2 and 1 have a hash, when seven are taken,
    then it is the first seven in that order; each has count 1, and 2 has lost its hash."""
    loop = start()
    loop.leave_behind("a", (1, 2, 3, 4))
    assert loop.free == (3, 4, 5, 6, 7, 8, 2, 1)

    moved = blocks.extend(loop.pool, 7)
    assert moved.blocks == (3, 4, 5, 6, 7, 8, 2)
    assert moved.pool.free == (1,)
    assert [block.ref_count for block in moved.pool.blocks] == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert moved.pool.blocks[2].key is None
    assert moved.pool.blocks[1].key is not None


def test_rule_06_each_evicted_block_is_told_even_if_a_copy_stays() -> None:
    """Given 1 2 in blocks 1 and 2, when block 1 is taken, then its removal is told and block 2
    still answers; when block 2 is taken too, a second removal of the same hash is told, and it is
    forgotten. Freeing never removes a hash."""
    loop = start()
    loop.leave_behind("a", (1, 2))
    loop.leave_behind("b", (1, 2))
    key = link(PUBLIC, None, (1, 2))
    assert (loop.copies(1, 2), loop.free) == ((1, 2), (3, 4, 5, 6, 7, 8, 1, 2))

    seven = blocks.extend(loop.pool, 7)
    assert seven.events == (BlockRemoved(1, key),)
    assert dict(seven.pool.index.copies) == {key: (2,)}

    eighth = blocks.extend(seven.pool, 1)
    assert eighth.events == (BlockRemoved(2, key),)
    assert dict(eighth.pool.index.copies) == {}


def test_rule_07_a_hit_leaves_the_queue_from_wherever_it_stands() -> None:
    """Given 1 2 in block 1, which stands between others in the free queue, when a text shares it,
    then it leaves the queue and the order of the rest stays; a second sharer only counts."""
    loop = start(num_blocks=6)
    loop.leave_behind("a", (1, 2))
    loop.leave_behind("z", (8, 9))
    assert loop.free == (3, 4, 5, 1, 2)

    once = blocks.acquire(loop.pool, (1,))
    assert once.blocks == (1,)
    assert once.pool.free == (3, 4, 5, 2)
    assert once.pool.blocks[1].ref_count == 1

    twice = blocks.acquire(once.pool, (1,))
    assert twice.pool.free == (3, 4, 5, 2)
    assert twice.pool.blocks[1].ref_count == 2
    assert twice.pool.index == loop.pool.index


def test_rule_08_a_table_is_freed_from_its_end() -> None:
    """Given the table 1 2 3 4, of which 3 and 4 have no hash, when it is freed, then the queue is 4
    3 … what was there … 2 1. A block that another table holds stays out of it."""
    loop = start()
    taken = blocks.extend(loop.pool, 4)
    hashes = keys(PUBLIC, (1, 2, 3, 4), 2)
    table = blocks.publish(taken.pool, (1, 2), hashes).pool
    assert table.free == (5, 6, 7, 8)

    freed = blocks.release(table, VLLM_0_33, (1, 2, 3, 4)).pool
    assert freed.free == (4, 3, 5, 6, 7, 8, 2, 1)
    assert freed.index.copies == table.index.copies

    held_twice = blocks.acquire(table, (1,)).pool
    freed = blocks.release(held_twice, VLLM_0_33, (1, 2, 3, 4)).pool
    assert freed.free == (4, 3, 5, 6, 7, 8, 2)
    assert freed.blocks[1].ref_count == 1


def test_rule_09_a_reset_is_refused_while_blocks_are_held() -> None:
    """Given a in blocks 1 2 and b in 3 4, when the cache is reset, then nothing changes. Asked to
    preempt, b and then a are sent back, so that a waits before b; all hashes are forgotten, the
    queue keeps the order in which the blocks came, and nothing of it is told block by block."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.submit("b", (4, 5, 6))
    loop.step()
    before = loop.state
    assert loop.do(ResetCache()) == (Refused("reset", Reason.HELD),)
    assert loop.state == before

    told = loop.do(ResetCache(preempt_running=True))
    assert told == (Preempted("b"), Preempted("a"), CacheCleared())
    assert (loop.running, loop.waiting) == ("", "a b")
    # b's full blocks 3 and 4 (its sampled token filled 4, but is not computed: no hash yet).
    assert loop.free == (2, 4, 5, 6, 7, 8, 3, 1)
    assert dict(loop.pool.index.copies) == {}
    assert all(block.key is None for block in loop.pool.blocks)


def test_rule_10_blocks_are_published_at_scheduling() -> None:
    """Given 1 2 3 4 5, when it is scheduled, then blocks 1 and 2 are findable at once, before
    anything is computed; the third when a pass computes the token that fills it. The parent of a
    hash is that of the block before."""
    loop = start()
    loop.submit("a", (1, 2, 3, 4, 5))
    loop.plan()
    first, second = keys(PUBLIC, (1, 2, 3, 4), 2)
    assert loop.cache_events == [BlockStored(1, first, None), BlockStored(2, second, first)]
    assert loop.pool.blocks[1].content == ()

    assert loop.run() == (Delivered("a", 0, (SAMPLED,)),)
    loop.plan()
    third = link(PUBLIC, second, (5, SAMPLED))
    assert loop.cache_events == [BlockStored(3, third, second)]


def test_rule_10_a_copy_stays_beside_the_first() -> None:
    """Given 1 2 in block 1, when the same text comes whole, then its block 2 is told and stands
    behind block 1 under the same hash; both tables keep their own block."""
    loop = start()
    loop.submit("a", (1, 2))
    loop.step()
    loop.submit("b", (1, 2))
    assert loop.plan() == "a:1 b:2"
    assert (loop.table("a"), loop.table("b")) == ((1, 2), (3,))
    assert loop.stored == (3,)
    assert loop.copies(1, 2) == (1, 3)


def test_rule_11_a_look_up_never_covers_the_last_token() -> None:
    """Given 1 2 3 4 in blocks 1 and 2, when it comes again, then only block 1 is a hit: 3 4 is
    computed into block 3, a second copy. When 1 2 3 4 5 comes, then blocks 1 and 2, the oldest of
    each, are hits, and one token is computed."""
    loop = start()
    loop.leave_behind("a", (1, 2, 3, 4))
    loop.submit("b", (1, 2, 3, 4))
    assert loop.plan() == "b:2"
    assert (loop.hit_tokens("b"), loop.table("b")) == (2, (1, 3))
    assert loop.copies(1, 2, 3, 4) == (2, 3)

    loop.run()
    loop.submit("c", (1, 2, 3, 4, 5))
    assert loop.plan() == "b:1 c:1"
    assert (loop.hit_tokens("c"), loop.table("c")[:2]) == (4, (1, 2))


def test_rule_11_a_look_up_stops_at_the_first_miss() -> None:
    """Given hashes of 1 2 | 3 4 | 5 6, of which the first is gone, then nothing is a hit: a block
    is worth nothing without all that stands before it."""
    loop = start()
    first, second, third = keys(PUBLIC, (1, 2, 3, 4, 5, 6), 2)
    taken = blocks.extend(loop.pool, 3).pool
    pool = blocks.publish(taken, (1, 2, 3), (first, second, third)).pool
    chain = (first, second, third)
    assert blocks.match(pool, VLLM_0_33, chain, 7, 2) == (1, 2, 3)
    assert blocks.match(pool, VLLM_0_33, chain, 6, 2) == (1, 2)

    holed = Pool(pool.blocks, pool.free, pool.index.with_copies(first, ()))
    assert blocks.match(holed, VLLM_0_33, chain, 7, 2) == ()
    holed = Pool(pool.blocks, pool.free, pool.index.with_copies(second, ()))
    assert blocks.match(holed, VLLM_0_33, chain, 7, 2) == (1,)


# --- B. allocation -------------------------------------------------------------------------


def test_rule_12_an_idle_hit_costs_a_free_block() -> None:
    """Given 4 blocks, 1 2 cached in one of them, when a text of 8 tokens comes that begins with it,
    then it needs 3 new blocks and the hit, and all 4 are free: it is admitted. One of 9 tokens
    needs 5, and nothing at all happens to it."""
    loop = start(num_blocks=5)
    loop.leave_behind("a", (1, 2))
    cached = loop.state
    loop.submit("b", (1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert loop.plan() == ""
    assert loop.passed_over == {"b": Reason.NO_ROOM}
    assert loop.pool == cached.pool

    loop.state = cached
    loop.submit("b", (1, 2, 3, 4, 5, 6, 7, 8))
    assert loop.plan() == "b:6"
    assert loop.table("b") == (1, 2, 3, 4)


def test_rule_12_a_hit_that_a_table_holds_costs_nothing() -> None:
    """Given 4 blocks, of which a takes one, when a text of 8 tokens comes that begins with it, then
    it needs the other 3."""
    loop = start(num_blocks=5)
    loop.submit("a", (1, 2))
    loop.submit("b", (1, 2, 3, 4, 5, 6, 7, 8))
    assert loop.plan() == "a:2 b:6"
    assert loop.table("b") == (1, 2, 3, 4)


def test_rule_12_the_text_of_one_that_comes_back_has_its_output() -> None:
    """Given 4 blocks, no cache and 2 tokens a pass, when a prompt of 8 has got its first token,
    then the text is of 9 tokens: it finds no fifth block, preempts itself, and does not come back,
    though its first 2 tokens, and its whole prompt, would fit."""
    loop = start(UNCACHED, num_blocks=5, max_num_batched_tokens=2)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    assert [loop.step() for _ in range(4)] == ["a:2"] * 4
    assert loop.step() == ""
    assert loop.preempted == "a"
    assert loop.step() == ""
    assert (loop.passed_over, len(loop.free)) == ({"a": Reason.NO_ROOM}, 4)


def test_rule_12_the_look_at_the_whole_text_reserves_nothing() -> None:
    """Given 4 blocks and 2 tokens a pass, when a text of 8 tokens comes, then it is admitted, since
    it would fit, and takes the one block of its first chunk; max_tokens play no part. One of 9
    tokens is not, though its first chunk would fit."""
    loop = start(num_blocks=5, max_num_batched_tokens=2)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8), max_tokens=8)
    assert loop.plan() == "a:2"
    assert loop.table("a") == (1,)
    assert loop.free == (2, 3, 4)

    other = start(num_blocks=5, max_num_batched_tokens=2)
    other.submit("b", (1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert other.plan() == ""


def test_rule_12_the_watermark_stays_free_while_something_runs() -> None:
    """Given 5 blocks, the null block counted, and a watermark of 0.45, 2 blocks stay free (2.25
    rounded down) while something runs, also what this very pass admitted: beside a, of the 3 free
    blocks, one may be taken. Nobody runs: all 4 may."""
    loop = start(num_blocks=5, watermark=0.45)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4, 5))
    assert loop.plan() == "a:2"
    assert loop.passed_over == {"b": Reason.NO_ROOM}

    loop = start(num_blocks=5, watermark=0.45)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4))
    assert loop.plan() == "a:2 b:2"

    loop = start(num_blocks=5, watermark=0.45)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    assert loop.plan() == "a:8"


def test_rule_13_look_ahead_slots_are_taken_up_to_max_model_len() -> None:
    """Given 2 look-ahead slots, then a prompt of 3 takes blocks for 5 slots; its next token, the
    fourth, needs 6, and the fifth 7, or no more than the longest text: 6, if that is so long. If no
    text is longer than 4, the prompt takes blocks for 4. Without look-ahead it does so too."""
    ahead = {"num_speculative_tokens": 1, "num_lookahead_tokens": 2}
    loop = start(**ahead)
    loop.submit("a", (1, 2, 3))
    tables = []
    for _ in range(3):
        loop.step()
        tables.append(loop.table("a"))
    assert tables == [(1, 2, 3), (1, 2, 3), (1, 2, 3, 4)]

    loop = start(**ahead, max_model_len=6)
    loop.submit("a", (1, 2, 3))
    assert [loop.step(), loop.step()] == ["a:3", "a:1"]
    assert loop.plan() == "a:1"
    assert (loop.computed("a"), loop.table("a")) == (5, (1, 2, 3))

    for loop in start(**ahead, max_model_len=4), start():
        loop.submit("a", (1, 2, 3))
        loop.plan()
        assert loop.table("a") == (1, 2)


# --- C. one scheduling pass ----------------------------------------------------------------


def test_rule_14_the_threshold_is_waived_for_one_alone() -> None:
    """Given 16 tokens a pass and a threshold of 2, then a prompt of 8 that is alone goes in one
    pass. With another one, even if it only waits, it gets 2 a pass; when the other has left, the
    rest."""
    loop = start(long_prefill_token_threshold=2)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    assert loop.plan() == "a:8"

    loop = start(long_prefill_token_threshold=2, max_num_seqs=1)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    loop.submit("b", (7, 8, 9))
    assert loop.step() == "a:2"
    assert loop.passed_over == {"b": Reason.NO_SEATS}
    assert loop.step() == "a:2"
    loop.do(Abort("b"))
    assert loop.step() == "a:4"


def test_rule_15_running_requests_come_first_in_list_order() -> None:
    """Given 5 tokens a pass, a decoding, b with 3 of 6 tokens still to compute and c waiting, then
    a gets one, b the rest of its prompt, and c what is left."""
    loop = start(max_num_batched_tokens=5)
    loop.submit("a", (1, 2))
    loop.submit("b", (6, 5, 4, 3, 2, 1))
    assert loop.step() == "a:2 b:3"
    loop.submit("c", (9,))
    assert loop.step() == "a:1 b:3 c:1"


def test_rule_15_a_decode_wants_one_token_and_its_drafts() -> None:
    loop = start(num_speculative_tokens=3)
    loop.submit("a", (1, 2))
    loop.plan()
    loop.run(drafts={"a": (7, 8)})
    assert loop.plan() == "a:3"
    assert loop.entry("a").tokens == (SAMPLED, 7, 8)


def test_rule_16_a_prompt_of_max_model_len_stands_for_ever() -> None:
    """Given texts of at most 8 tokens and 4 tokens a pass, when a prompt of 8 comes, then it gets 4
    tokens, 3 more (8 - 4 - 1), and never the last: it stands at C = 7 in the running list, with its
    4 blocks, until it is aborted. In one chunk it would have ended by its first token. A prompt of
    9 is not let in."""
    loop = start(max_model_len=8, max_num_batched_tokens=4)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    assert [loop.step(), loop.step()] == ["a:4", "a:3"]
    loop.submit("b", (9,), max_tokens=2)
    assert [loop.step(), loop.step(), loop.step()] == ["b:1", "b:1", ""]
    assert loop.plan() == ""
    assert loop.passed_over == {"a": Reason.MODEL_LENGTH}
    assert (loop.running, loop.computed("a"), loop.table("a")) == ("a", 7, (1, 2, 3, 4))
    loop.run()
    loop.do(Abort("a"))
    assert len(loop.free) == 8

    whole = start(max_model_len=8)
    whole.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    assert whole.step() == "a:8"
    assert whole.finished == {"a": Reason.LENGTH}
    whole.submit("longer", (1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert whole.events == (Refused("longer", Reason.IMPOSSIBLE),)


def test_rule_16_threshold_and_budget_cut_a_running_prefill() -> None:
    loop = start(max_num_batched_tokens=5, long_prefill_token_threshold=3)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7))
    loop.submit("b", (8, 9, 8, 9, 8, 9, 8))
    assert loop.step() == "a:3 b:2"
    assert loop.step() == "a:3 b:2"
    assert loop.step() == "a:1 b:3"


def test_rule_17_the_same_tokens_are_tried_again_after_each_victim() -> None:
    """Given a, b and c with a block each and none left, when a wants 4 tokens and so 2 blocks more,
    then one victim is not enough; after the second it gets all 4, and the blocks of both."""
    loop = start(num_blocks=4, num_speculative_tokens=3)
    for name, token in ("a", 1), ("b", 2), ("c", 3):
        loop.submit(name, (token,))
    loop.plan()
    loop.run(drafts={"a": (7, 8, 9)})
    assert loop.plan() == "a:4"
    assert loop.preempted == "c b"
    assert loop.table("a") == (1, 2, 3)


def test_rule_18_a_pass_lists_running_requests_then_admissions() -> None:
    """Given 4 tokens a pass, a and b decoding and c and d waiting, then the pass is a, b, and 2 of
    c's 3 tokens; nothing is left for d."""
    loop = start(max_num_batched_tokens=4)
    loop.submit("a", (1,))
    loop.submit("b", (2,))
    loop.step()
    loop.submit("c", (3, 4, 5))
    loop.submit("d", (6,))
    assert loop.plan() == "a:1 b:1 c:2"
    assert loop.passed_over == {"d": Reason.NO_TOKENS}


def test_rule_19_fcfs_preempts_the_last_or_the_request_itself() -> None:
    """Given 3 blocks, a and b with one each, when both need another, then a takes the third and b,
    the last, preempts itself. With b behind it, a's next need is at b's cost."""
    loop = start(num_blocks=4)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4))
    assert loop.step() == "a:2 b:2"
    assert loop.plan() == "a:1"
    assert (loop.preempted, loop.running, loop.waiting) == ("b", "a", "b")

    loop = start(num_blocks=3)
    loop.submit("a", (1, 2))
    loop.submit("b", (3,))
    assert loop.step() == "a:2 b:1"
    assert loop.plan() == "a:1"
    assert loop.preempted == "b"
    assert loop.table("a") == (1, 2)


def test_rule_20_a_victim_that_was_scheduled_gives_its_tokens_back() -> None:
    """Given 6 blocks and 5 tokens a pass; low (2 blocks), high (2) and mid (1) run, low with 2
    drafts and high with 2. Low is scheduled with 3 tokens and takes the sixth block. High is cut to
    the 2 tokens left and needs a block: low gives way, though it was scheduled. Its 3 tokens go
    back, not to high, which tries the same 2 again, but to mid."""
    loop = start(PRIORITY, num_blocks=7, max_num_batched_tokens=5, num_speculative_tokens=2)
    loop.submit("low", (1,), priority=2)
    assert loop.step() == "low:1"
    loop.submit("high", (3, 4), priority=0)
    assert loop.step() == "low:1 high:2"
    loop.submit("mid", (5, 6), priority=1)
    assert loop.plan() == "low:1 high:1 mid:2"
    loop.run(drafts={"low": (7, 8), "high": (7, 8)})
    assert [len(loop.table(name)) for name in ("low", "high", "mid")] == [2, 2, 1]
    assert len(loop.free) == 1

    assert loop.plan() == "high:2 mid:1"
    assert loop.preempted == "low"
    assert loop.running == "high mid"
    assert loop.entry("high").drafts == (7,)


def test_rule_20_among_equals_the_first_in_the_list_is_the_victim() -> None:
    """Given 3 blocks, b and a of one priority that came at the same moment, a before b in the list,
    when b finds no room, then a gives way, though its own pass was already made; and of two
    arrivals it is the later."""
    loop = start(PRIORITY, num_blocks=4)
    loop.submit("b", (1, 2))
    loop.submit("a", (3, 4), with_last=True)
    assert loop.step() == "a:2 b:2"
    assert loop.plan() == "b:1"
    assert (loop.preempted, loop.running) == ("a", "b")

    loop = start(PRIORITY, num_blocks=4)
    loop.submit("a", (3, 4))
    loop.submit("b", (1, 2))
    assert loop.step() == "a:2 b:2"
    assert loop.plan() == "a:1"
    assert loop.preempted == "b"


def test_rule_21_the_preempted_keeps_its_output_and_finds_its_blocks() -> None:
    """Given b with 3 4 and one token of output, when it is preempted, then nothing is computed and
    its table is empty, but its output stays, and so does block 2 in the cache. When there is room
    again, one token is computed."""
    loop = start(num_blocks=4)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4))
    loop.step()
    loop.step()
    b = loop.request("b")
    assert (b.output, b.computed, b.table, b.published, b.drafts) == ((SAMPLED,), 0, (), 0, ())
    assert loop.waiting == "b"
    assert loop.copies(3, 4) == (2,)

    loop.do(Abort("a"))
    assert loop.plan() == "b:1"
    assert (loop.hit_tokens("b"), loop.table("b")[0]) == (2, 2)
    assert loop.entry("b").tokens == (SAMPLED,)


def test_rule_22_by_priority_the_pass_goes_on_after_a_self_preemption() -> None:
    """Given 3 blocks, low before high in the list, when low, with 2 drafts, wants 3 tokens and
    finds no room, then it gives way itself, and high, now in its place, is scheduled: with the one
    token that it wants, in a block that low had."""
    loop = start(PRIORITY, num_blocks=4, num_speculative_tokens=2)
    loop.submit("low", (1, 2), priority=2)
    assert loop.step() == "low:2"
    loop.submit("high", (3, 4), priority=0)
    assert loop.plan() == "low:1 high:2"
    loop.run(drafts={"low": (7, 8)})
    assert (loop.table("low"), loop.table("high"), loop.free) == ((1, 2), (3,), ())

    assert loop.plan() == "high:1"
    assert (loop.preempted, loop.running) == ("low", "high")
    assert loop.table("high") == (3, 2)


def test_rule_23_a_preemption_shuts_the_door_for_the_pass() -> None:
    """Given 3 blocks, when b of 2 blocks gives way to a, then one block stays free, and c, which
    needs one, is not admitted; nor is b. In the next pass c still waits behind b. A reset between
    passes shuts nothing."""
    loop = start(num_blocks=4)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4, 5))
    assert loop.step() == "a:2 b:3"
    loop.submit("c", (6,))
    assert loop.plan() == "a:1"
    assert loop.preempted == "b"
    assert len(loop.free) == 1
    assert loop.passed_over == {"b": Reason.PREEMPTION}
    assert loop.waiting == "b c"

    loop.run()
    loop.do(ResetCache(preempt_running=True))
    assert loop.preempted == "a"
    assert loop.plan() == "a:4"
    assert loop.waiting == "b c"


def test_rule_24_the_head_is_admitted_while_seats_are_left() -> None:
    """Given 2 seats, then a and b are admitted, and c waits though there is room; when a leaves, c
    gets its seat. What is admitted computes its text but for the hits."""
    loop = start(max_num_seqs=2)
    loop.submit("a", (1, 2, 3), max_tokens=2)
    loop.submit("b", (1, 2, 4))
    loop.submit("c", (1, 2, 5))
    assert loop.step() == "a:3 b:1"
    assert loop.passed_over == {"c": Reason.NO_SEATS}
    assert loop.step() == "a:1 b:1"
    assert loop.step() == "b:1 c:1"


def test_rule_25_an_admission_is_cut_or_ends_admissions() -> None:
    """Given 4 tokens a pass and prompts of 3, 3 and 1, then b gets the one token that a leaves;
    where prompts may not be cut, b ends the admissions, and c gets nothing though it would fit.
    With a threshold of 2, a and b get 2 each. With 6 tokens a pass both fit whole."""
    cut = start(max_num_batched_tokens=4)
    whole = start(UNCHUNKED, max_num_batched_tokens=4)
    short = start(max_num_batched_tokens=4, long_prefill_token_threshold=2)
    for loop in (cut, whole, short):
        loop.submit("a", (1, 2, 3))
        loop.submit("b", (4, 5, 6))
        loop.submit("c", (7,))
    assert cut.plan() == "a:3 b:1"
    assert whole.plan() == "a:3"
    assert whole.passed_over == {"b": Reason.NO_CHUNKS}
    assert short.plan() == "a:2 b:2"

    exact = start(UNCHUNKED, max_num_batched_tokens=6)
    exact.submit("a", (1, 2, 3))
    exact.submit("b", (4, 5, 6))
    assert exact.plan() == "a:3 b:3"


def test_rule_26_who_never_fits_blocks_everybody_behind_it() -> None:
    """Given 4 blocks, a text of 9 tokens at the head and one token behind it, then nothing is ever
    scheduled. By priority it blocks only those of a worse key."""
    loop = start(num_blocks=5)
    loop.submit("big", tuple(range(9)))
    loop.submit("small", (1,))
    assert [loop.step(), loop.step(), loop.step()] == ["", "", ""]
    assert (loop.waiting, loop.passed_over) == ("big small", {"big": Reason.NO_ROOM})

    loop = start(PRIORITY, num_blocks=5)
    loop.submit("big", tuple(range(9)), priority=1)
    loop.submit("worse", (1,), priority=2)
    loop.submit("better", (1,), priority=0)
    assert [loop.step(), loop.step()] == ["better:1", "better:1"]
    assert loop.waiting == "big worse"


def test_rule_26_nobody_is_preempted_to_admit_another() -> None:
    """Given all blocks held by the worst priority, then the best waits."""
    loop = start(PRIORITY, num_blocks=3)
    loop.submit("worst", (1, 2, 3), max_tokens=2, priority=9)
    loop.step()
    loop.submit("best", (4,), priority=0)
    assert loop.step() == "worst:1"
    assert loop.finished == {"worst": Reason.LENGTH}
    assert loop.step() == "best:1"


def test_rule_27_the_admitted_goes_to_the_end_with_its_hits() -> None:
    """Given a running, when b shares block 1, then b stands behind a, its table begins with block
    1, 2 tokens and one block count as done, and only the block behind it is published."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.step()
    loop.submit("b", (1, 2, 5, 6))
    assert loop.plan() == "a:1 b:2"
    assert (loop.running, loop.waiting) == ("a b", "")
    assert (loop.entry("b").start, loop.table("b")) == (2, (1, 3))
    assert loop.request("b").published == 2
    assert loop.stored == (2, 3)  # of a, whose second block the pass fills, then of b


def test_rule_28_computed_tokens_advance_before_anything_is_computed() -> None:
    """Given 3 tokens a pass and a prompt of 5, then C is 3 as soon as the first pass is made, and
    that pass yields no token; the second reaches the end of the text and yields one."""
    loop = start(max_num_batched_tokens=3)
    loop.submit("a", (1, 2, 3, 4, 5))
    loop.plan()
    assert (loop.computed("a"), loop.entry("a").yields) == (3, False)
    assert loop.run() == ()
    loop.plan()
    assert (loop.computed("a"), loop.entry("a").yields) == (5, True)
    assert loop.run() == (Delivered("a", 0, (SAMPLED,)),)
    assert loop.computed("a") == 5


# --- D. the output of a step ---------------------------------------------------------------


def test_rule_29_the_first_stop_ends_and_what_is_behind_it_is_dropped() -> None:
    """Given a stop token 7, when a step brings 7 8 9, then only 7 is delivered, and C goes back by
    the 2 that are dropped: of the text 1 2 100 7 three are computed, so block 2 stays without a
    hash, and is freed to the head of the queue."""
    loop = start(num_speculative_tokens=2)
    loop.submit("a", (1, 2), stop=(7,))
    loop.plan()
    loop.run(drafts={"a": (7, 8)})
    assert loop.plan() == "a:3"
    assert loop.table("a") == (1, 2, 3)
    assert loop.run({"a": (7, 8, 9)}) == (
        Delivered("a", 1, (7,)),
        Finished("a", Reason.STOP),
    )
    assert loop.free == (3, 2, 4, 5, 6, 7, 8, 1)


def test_rule_29_the_length_ends_by_max_tokens_or_max_model_len() -> None:
    """Given that 3 tokens of output are allowed and 1 is there, when 7 8 9 comes, then 7 8 is
    delivered. Given texts of 5 tokens, of which 3 are there, one draft is scheduled, and 7 8 ends
    it too. A stop token in the last place counts as a stop, not as the length."""
    ends = []
    for max_model_len, stop in (16, ()), (5, ()), (16, (8,)):
        loop = start(num_speculative_tokens=2, max_model_len=max_model_len)
        loop.submit("a", (1, 2), max_tokens=3, stop=stop)
        loop.plan()
        loop.run(drafts={"a": (7, 8)})
        wanted = loop.plan()
        loop.run({"a": (7, 8, 9) if wanted == "a:3" else (7, 8)})
        ends.append((wanted, loop.delivered["a"], loop.finished["a"]))
    assert ends == [
        ("a:3", (7, 8), Reason.LENGTH),
        ("a:2", (7, 8), Reason.LENGTH),
        ("a:3", (7, 8), Reason.STOP),
    ]


def test_rule_29_outputs_are_handled_in_scheduling_order() -> None:
    """Given a and b that end in one step, then a's table is freed first, b's after it, in whatever
    order their tokens are brought; the block that is not full has no hash."""
    loop = start()
    loop.submit("a", (1, 2, 3), max_tokens=1)
    loop.submit("b", (4, 5, 6), max_tokens=1)
    loop.plan()
    told = loop.do(Complete((Output("b", (SAMPLED,)), Output("a", (SAMPLED,)))))
    assert told == (
        Delivered("a", 0, (SAMPLED,)),
        Finished("a", Reason.LENGTH),
        Delivered("b", 0, (SAMPLED,)),
        Finished("b", Reason.LENGTH),
    )
    assert loop.free == (4, 2, 5, 6, 7, 8, 1, 3)
    assert loop.state.live == ()


def test_rule_30_an_abort_between_pass_and_output() -> None:
    """Given a pass over 1 2 3 4 of a and 5 6 of b, when a is aborted before the output, then its
    blocks are free and stay findable, and its id can be used again at once. The output, when it
    comes, is for nobody: the new a, which waits under the old id, gets nothing of it. That of b is
    for b."""
    loop = start()
    loop.submit("a", (1, 2, 3, 4))
    loop.submit("b", (5, 6))
    assert loop.plan() == "a:4 b:2"
    with pytest.raises(ActionDisabled, match="a request with this id is alive"):
        loop.submit("a", (1, 2, 3, 4, 5))

    assert loop.do(Abort("a")) == (Finished("a", Reason.ABORT),)
    assert loop.free == (4, 5, 6, 7, 8, 2, 1)
    loop.submit("a", (1, 2, 3, 4, 5))
    told = loop.do(Complete((Output("a", (SAMPLED,)), Output("b", (SAMPLED,)))))
    assert told == (Delivered("b", 0, (SAMPLED,)),)
    assert loop.request("a").output == ()
    assert loop.plan() == "b:1 a:1"
    assert (loop.hit_tokens("a"), loop.table("a")) == (4, (1, 2, 5))


def test_rule_30_an_abort_takes_one_out_wherever_it_is() -> None:
    """Given a, b, c running and d, e, f waiting, when b and e are aborted, then the others stay in
    their order and keep what they have, and b's blocks are free."""
    loop = start(max_num_seqs=3)
    for number, name in enumerate("abcdef"):
        loop.submit(name, (number, number, number))
    loop.step()
    assert loop.do(Abort("e")) == (Finished("e", Reason.ABORT),)
    assert (loop.running, loop.waiting) == ("a b c", "d f")
    assert loop.do(Abort("b")) == (Finished("b", Reason.ABORT),)
    assert (loop.running, loop.waiting) == ("a c", "d f")
    assert (loop.table("a"), loop.table("c")) == ((1, 2), (5, 6))
    assert loop.free == (4, 7, 8, 3)


def test_rule_30_an_abort_of_nobody_changes_nothing() -> None:
    """Given that a was aborted, then a second abort, or one of an id that never was, is no
    error."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.step()
    assert loop.do(Abort("a")) == (Finished("a", Reason.ABORT),)
    assert loop.free == (2, 3, 4, 5, 6, 7, 8, 1)
    nobody = loop.state
    assert loop.do(Abort("a")) == ()
    assert loop.do(Abort("never")) == ()
    assert loop.state == nobody


def test_rule_31_a_reset_between_steps_and_an_empty_step_after_the_last() -> None:
    """Given that a has just finished, then one more step can be made, with nothing in it. When the
    cache is reset then, all blocks are free and every hash is forgotten."""
    loop = start()
    loop.leave_behind("a", (1, 2, 3, 4))
    assert loop.plan() == ""
    assert loop.events == ()
    assert loop.run() == ()

    assert loop.do(ResetCache()) == (CacheCleared(),)
    assert loop.free == (3, 4, 5, 6, 7, 8, 2, 1)
    loop.submit("b", (1, 2, 3, 4))
    assert loop.plan() == "b:4"


# --- E. speculative decoding ---------------------------------------------------------------


def test_rule_32_drafts_are_stored_after_a_step() -> None:
    """Given 4 tokens a pass and 3 drafts a request: the drafts that come with a prefill chunk are
    thrown away; those of a decode are kept, also over a pass that has no tokens for it, and those
    of a later step replace them."""
    loop = start(max_num_batched_tokens=4, num_speculative_tokens=3)
    loop.submit("b", (1, 2, 3, 4, 5))
    assert loop.plan() == "b:4"
    loop.do(Complete((Output("b", (), (7, 8, 9)),)))
    assert loop.request("b").drafts == ()

    loop.submit("a", (6, 7))
    assert loop.plan() == "b:1 a:2"
    loop.run(drafts={"b": (7, 8, 9), "a": (7, 8)})
    assert loop.plan() == "b:4"
    assert loop.passed_over == {"a": Reason.NO_TOKENS}
    assert (loop.request("b").drafts, loop.request("a").drafts) == ((), (7, 8))

    loop.run(drafts={"b": (9,)})
    assert (loop.request("b").drafts, loop.request("a").drafts) == ((9,), (7, 8))
    assert loop.plan() == "b:2 a:2"


def test_rule_33_drafts_that_do_not_fit_are_lost() -> None:
    """Given 6 tokens a pass, a with 3 drafts and b with 3, then a gets 4 tokens and b 2: of b's
    drafts the first is used and the others are lost. With 5 tokens a pass all are."""
    kept = []
    for budget in (6, 5):
        loop = start(max_num_batched_tokens=budget, num_speculative_tokens=3)
        loop.submit("a", (1, 2))
        loop.submit("b", (3, 4))
        loop.plan()
        loop.run(drafts={"a": (7, 8, 9), "b": (7, 8, 9)})
        passed = loop.plan()
        kept.append((passed, loop.entry("b").drafts, loop.request("b").drafts))
    assert kept == [("a:4 b:2", (7,), ()), ("a:4 b:1", (), ())]


def test_rule_34_rejected_drafts_keep_their_blocks() -> None:
    """Given 1 2 and one token, when 3 drafts are scheduled, then C is 6 in 3 blocks. When all are
    rejected, then C is 3, and the third block stays in the table, for the passes to come."""
    loop = start(num_speculative_tokens=3)
    loop.submit("a", (1, 2))
    loop.plan()
    loop.run(drafts={"a": (7, 8, 9)})
    assert loop.plan() == "a:4"
    assert (loop.computed("a"), loop.table("a")) == (6, (1, 2, 3))

    loop.run({"a": (5,)})
    assert loop.delivered == {"a": (5,)}
    assert (loop.computed("a"), loop.table("a")) == (3, (1, 2, 3))
    assert [loop.step(), loop.step(), loop.step()] == ["a:1", "a:1", "a:1"]
    assert loop.table("a") == (1, 2, 3)
    loop.step()
    assert loop.table("a") == (1, 2, 3, 4)


def test_rule_35_accepted_drafts_are_published_with_the_output() -> None:
    """Given 1 2 3 and one token, when drafts 7 8 9 are scheduled, then block 2 (3 100) is
    published, and no draft is. When 7 8 are accepted and 5 follows, then block 3 (7 8) is published
    with the output, also of a request that ends by it. If 7 alone is accepted, it is not."""
    first, second, third = keys(PUBLIC, (1, 2, 3, SAMPLED, 7, 8), 2)
    for tokens, max_tokens in ((7, 8, 5), 9), ((7, 8, 5), 4), ((7, 5), 9):
        loop = start(num_speculative_tokens=3)
        loop.submit("a", (1, 2, 3), max_tokens)
        loop.plan()
        loop.run(drafts={"a": (7, 8, 9)})
        assert loop.plan() == "a:4"
        assert loop.cache_events == [BlockStored(2, second, first)]
        loop.run({"a": tokens})
        accepted = len(tokens) == 3
        assert loop.cache_events == ([BlockStored(3, third, second)] if accepted else [])
        assert loop.copies(1, 2, 3, SAMPLED, 7, 8) == ((3,) if accepted else ())
        assert loop.finished == ({"a": Reason.LENGTH} if max_tokens == 4 else {})


def padded_beside_a_decode(**sizes: float) -> Loop:
    """a decodes, and b of one token is looked at; 3 drafts a request."""
    loop = start(num_speculative_tokens=3, **sizes)
    loop.submit("a", (1, 2))
    loop.step()
    loop.submit("b", (5,))
    loop.plan()
    return loop


def test_rule_36_a_first_decode_is_padded() -> None:
    """Given a decoding and 3 drafts a request, when a prompt of one token is admitted, then it is
    padded to 4 tokens with drafts that stand for none. All are rejected: C is 1, and the blocks for
    4 slots stay."""
    loop = padded_beside_a_decode()
    assert [(e.id, len(e.tokens)) for e in loop.in_flight.entries] == [("a", 1), ("b", 4)]
    assert loop.entry("b").drafts == (PADDING, PADDING, PADDING)
    assert loop.table("b") == (3, 4)
    with pytest.raises(ActionDisabled, match="accepts"):
        loop.run({"b": (4, 5)})
    loop.run()
    assert (loop.computed("b"), loop.table("b")) == (1, (3, 4))


def test_rule_36_padding_needs_something_to_keep_uniform_with() -> None:
    """Given nothing that runs, then a prompt of one token is not padded; nor beside another that is
    admitted in the same pass. One of 3 tokens, 2 of them cached, is, if there is room for 2 + 1 + 3
    + 1."""
    loop = start(num_speculative_tokens=3)
    loop.submit("a", (1,))
    loop.submit("b", (2,))
    assert loop.plan() == "a:1 b:1"

    for max_model_len, passed in (16, "a:4"), (7, "a:4"), (6, "a:1"):
        loop = start(num_speculative_tokens=3, max_model_len=max_model_len)
        loop.leave_behind("z", (1, 2))
        loop.submit("a", (1, 2, 3))
        assert loop.plan() == passed


def test_rule_36_nobody_is_padded_beside_a_prefill() -> None:
    """Given 10 tokens a pass and a with 11 tokens, when its last one is computed, then it was still
    mid-prefill before this pass, and b is not padded beside it. In the next pass c is, and so is d,
    for those that are admitted in the same pass do not count. (There are 16 blocks.)"""
    loop = start(num_blocks=17, num_speculative_tokens=3, max_num_batched_tokens=10)
    loop.submit("a", tuple(range(11)))
    assert loop.step() == "a:10"
    loop.submit("b", (8,))
    assert loop.step() == "a:1 b:1"
    loop.submit("c", (9,))
    loop.submit("d", (9,))
    assert loop.step() == "a:1 b:1 c:4 d:4"


def test_rule_36_padding_ends_admissions_or_is_left_out() -> None:
    """Given 5 tokens a pass, a takes one and 4 are left for b's padding. With 4, of which 3 are
    left, admissions end instead. With texts of 4 tokens there is no room for 0 + 1 + 3 + 1, and b
    is not padded; with texts of 5 it is."""
    just = padded_beside_a_decode(max_num_batched_tokens=5)
    assert len(just.entry("b").tokens) == 4
    over = padded_beside_a_decode(max_num_batched_tokens=4)
    assert over.in_flight.entry("b") is None
    assert over.passed_over == {"b": Reason.PADDING}

    five = padded_beside_a_decode(max_model_len=5)
    assert len(five.entry("b").tokens) == 4
    four = padded_beside_a_decode(max_model_len=4)
    assert len(four.entry("b").tokens) == 1


def test_rule_37_preemption_drops_drafts() -> None:
    """Given 3 blocks, a and b with one each and two drafts for b, when b finds no room, then its
    drafts are gone, and it comes back without them."""
    loop = start(num_blocks=4, num_speculative_tokens=2)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4))
    loop.plan()
    loop.run(drafts={"b": (7, 8)})
    assert loop.request("b").drafts == (7, 8)
    assert loop.plan() == "a:1"
    assert loop.preempted == "b"
    assert loop.request("b").drafts == ()


def test_rule_37_max_tokens_are_not_looked_at_when_drafts_are_scheduled() -> None:
    """Given one token still allowed, then one token and 3 drafts are scheduled all the same; of the
    4 that come, one is delivered."""
    loop = start(num_speculative_tokens=3)
    loop.submit("a", (1, 2), max_tokens=2)
    loop.plan()
    loop.run(drafts={"a": (7, 8, 9)})
    assert loop.plan() == "a:4"
    loop.run({"a": (7, 8, 9, 5)})
    assert (loop.delivered, loop.finished) == ({"a": (7,)}, {"a": Reason.LENGTH})


# --- surprises -----------------------------------------------------------------------------


def test_surprise_s1_a_hit_on_what_does_not_exist_yet() -> None:
    """Given an empty cache, when 1 2 3 and 1 2 4 come before the same pass, then b shares block 1,
    of which nothing has been computed."""
    loop = start()
    loop.submit("a", (1, 2, 3))
    loop.submit("b", (1, 2, 4))
    assert loop.plan() == "a:3 b:1"
    assert (loop.table("a"), loop.table("b")) == ((1, 2), (1, 3))
    assert loop.pool.blocks[1].content == ()


def test_surprise_s2_every_full_repeat_adds_a_copy() -> None:
    """Given 1 2 asked for three times, then three blocks carry it. When one is evicted, an index
    that keeps a set of hashes has lost it, and two blocks still answer, the oldest first."""
    loop = start(num_blocks=5)
    as_set: set[Chain] = set()
    for name in ("a", "b", "c"):
        loop.leave_behind(name, (1, 2))
    assert loop.copies(1, 2) == (1, 2, 3)
    as_set |= set(loop.pool.index.copies)

    loop.submit("d", (5, 6, 7))
    loop.plan()
    as_set -= {e.key for e in loop.cache_events if isinstance(e, BlockRemoved)}
    assert link(PUBLIC, None, (1, 2)) not in as_set
    assert loop.removed == (1,)
    assert loop.copies(1, 2) == (2, 3)


def test_surprise_s3_room_that_a_preemption_made_is_not_used_in_its_pass() -> None:
    """Given 3 blocks, of which b gives 2 back so that a gets one, then one is free, and c, the head
    of the waiting queue, needs no more; it is admitted in the next pass and no earlier."""
    loop = start(PRIORITY, num_blocks=4)
    loop.submit("a", (1, 2), priority=0)
    loop.submit("b", (3, 4, 5), priority=2)
    assert loop.step() == "a:2 b:3"
    loop.submit("c", (6,), priority=1)
    assert loop.step() == "a:1"
    assert (loop.preempted, loop.waiting, len(loop.free)) == ("b", "c b", 1)
    assert loop.passed_over == {"c": Reason.PREEMPTION}
    assert loop.plan() == "a:1 c:1"


def test_surprise_s4_a_text_that_fills_the_pool_exactly() -> None:
    """Given 4 blocks and a prompt of 8 tokens, then one token of output works, for it needs no
    slot. With two, it needs a ninth slot, preempts itself, and never comes back; nor does b, behind
    it."""
    loop = start(num_blocks=5)
    prompt = (1, 2, 3, 4, 5, 6, 7, 8)
    loop.leave_behind("fits", prompt)

    loop.submit("a", prompt, max_tokens=2)
    assert loop.step() == "a:2"
    loop.submit("b", (9,))
    assert loop.step() == ""
    assert loop.preempted == "a"
    assert [loop.step(), loop.step(), loop.step()] == ["", "", ""]
    assert loop.waiting == "a b"


def test_surprise_s5_a_prompt_longer_than_the_pool() -> None:
    """Given 2 blocks, 2 tokens a pass, a prompt of 5, and no look at the whole text: without a
    cache it computes 4, preempts itself and starts over, for ever. With a cache it stops after the
    first time: its own blocks are hits, and then the rest does not fit."""
    step = evolve(VLLM_0_33, admission=Admission.STEP)
    uncached = start(evolve(step, sharing=Sharing.OFF), num_blocks=3, max_num_batched_tokens=2)
    cached = start(step, num_blocks=3, max_num_batched_tokens=2)
    for loop in (uncached, cached):
        loop.submit("a", (1, 2, 3, 4, 5))
    assert [uncached.step() for _ in range(7)] == ["a:2", "a:2", "", "a:2", "a:2", "", "a:2"]
    assert [cached.step() for _ in range(7)] == ["a:2", "a:2", "", "", "", "", ""]
    assert cached.waiting == "a"
    cached.plan()
    assert cached.passed_over == {"a": Reason.NO_ROOM}


def test_surprise_s7_a_threshold_that_cuts_the_padding_is_refused() -> None:
    """The engine fails an assertion in the pass; the specification refuses such sizes."""
    with pytest.raises(ConfigError, match="long_prefill_token_threshold: 2 cuts one token"):
        start(num_speculative_tokens=3, long_prefill_token_threshold=2)


def test_surprise_s10_the_watermark_holds_for_those_that_come_back() -> None:
    """Given 5 blocks, the null block counted, 2 are the watermark. When a reset has sent a and b
    back, then a, before which nothing runs, takes 2 of the 4 free blocks, and b, which needs the 2
    that are left, does not come back. Nor may a new one take them; but a, which runs, does."""
    loop = start(num_blocks=5, watermark=0.4)
    loop.submit("a", (1, 2))
    loop.submit("b", (3, 4))
    assert loop.step() == "a:2 b:2"
    loop.do(ResetCache(preempt_running=True))
    assert loop.step() == "a:3"
    assert (loop.passed_over, len(loop.free)) == ({"b": Reason.NO_ROOM}, 2)
    assert [loop.step() for _ in range(4)] == ["a:1"] * 4
    assert loop.free == ()
    loop.do(Abort("a"))
    assert loop.step() == "b:3"


def test_surprise_s11_a_victim_is_chosen_without_a_look_at_what_it_frees() -> None:
    """Given 5 blocks; high holds 1, other 3 and low 1. When high needs 2 more, then low, of the
    worst priority, gives way for its one block, which is not enough; then other does too, which
    would have been enough alone."""
    loop = start(PRIORITY, num_blocks=6, num_speculative_tokens=3)
    loop.submit("low", (1,), priority=5)
    loop.submit("other", (2, 3, 4, 5, 6), priority=4)
    loop.submit("high", (9,), priority=0)
    assert loop.plan() == "high:1 other:5 low:1"
    loop.run(drafts={"high": (7, 8, 9)})
    assert loop.plan() == "high:4"
    assert loop.preempted == "low other"
    assert (len(loop.table("high")), len(loop.free)) == (3, 2)


def test_surprise_s12_who_is_passed_over_keeps_seat_and_blocks() -> None:
    """Given one seat and a prompt of max_model_len that stands at C = 7 for ever, then b never gets
    the seat."""
    loop = start(max_model_len=8, max_num_batched_tokens=4, max_num_seqs=1)
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    loop.submit("b", (9,))
    assert [loop.step(), loop.step(), loop.step()] == ["a:4", "a:3", ""]
    assert loop.passed_over == {"a": Reason.MODEL_LENGTH, "b": Reason.NO_SEATS}


def test_surprise_s12_who_is_passed_over_can_be_the_victim() -> None:
    """Given 6 blocks, 4 of them held by a that stands at C = 7, behind b; when b, of 2 blocks,
    needs a third, then a gives way."""
    loop = start(num_blocks=7, max_model_len=8, max_num_batched_tokens=4)
    loop.submit("b", (9,))
    loop.submit("a", (1, 2, 3, 4, 5, 6, 7, 8))
    assert [loop.step() for _ in range(4)] == ["b:1 a:3", "b:1 a:3", "b:1 a:1", "b:1"]
    assert (loop.passed_over, loop.free) == ({"a": Reason.MODEL_LENGTH}, ())
    assert loop.step() == "b:1"
    assert (loop.preempted, loop.computed("a")) == ("a", 0)


def test_surprise_s13_without_a_cache_blocks_are_used_last_in_first_out() -> None:
    """Given caching off, then there is no event, and the block freed last is the next one taken."""
    loop = start(UNCACHED)
    loop.submit("a", (1, 2, 3), max_tokens=1)
    loop.submit("b", (4, 5, 6), max_tokens=1)
    loop.plan()
    assert loop.cache_events == []
    loop.run()
    assert loop.free == (4, 3, 2, 1, 5, 6, 7, 8)
    loop.submit("c", (1, 2, 3))
    assert loop.plan() == "c:3"
    assert loop.table("c") == (4, 3)


# --- nothing is missing --------------------------------------------------------------------

PINNED = [str(number) for number in range(1, 38)]


def told_of(kind: str) -> set[str]:
    """What stories of this kind are about, from their names."""
    found = (re.match(rf"test_{kind}_(\w+?)_", name) for name in globals())
    return {match[1].lstrip("0") for match in found if match}


def test_every_rule_has_a_story() -> None:
    assert sorted(told_of("rule"), key=int) == PINNED
    assert told_of("surprise") == {"s1", "s2", "s3", "s4", "s5", "s7", "s10", "s11", "s12", "s13"}


def test_every_rule_is_registered() -> None:
    assert servespec.machine
    assert servespec.cache
    assert servespec.scheduler
    registered = {rule.number for rule in RULES}
    assert [number for number in PINNED if number not in registered] == []


def test_what_is_registered_is_the_function_and_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a function that states two rules; when it is marked, then both are registered, with the
    first paragraph, where the function stands, and where the engine does it."""

    def stated() -> None:
        """It is said,
        on two lines.

        How it is computed is not part of it.
        """

    known: list[Rule] = []
    monkeypatch.setattr(servespec.rules, "RULES", known)
    assert servespec.rules.rule("98", "99", engine="Engine.stated")(stated) is stated
    place = f"{__name__}.{stated.__qualname__}"
    told = "It is said, on two lines."
    assert known == [Rule(number, told, place, "Engine.stated") for number in ("98", "99")]
