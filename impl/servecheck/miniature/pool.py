"""Part 1 of the article's program: a block pool, in which prompts share and come again, and what is
idle is evicted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from attrs import frozen

from servecheck.engines.whole import MakeWhole, SpecWhole
from servecheck.miniature.chance import Rng
from servecheck.miniature.loop import Loop, hold
from servespec.chain import Tokens
from servespec.config import Config
from servespec.events import Admitted, BlockRemoved, Event, Scheduled
from servespec.machine import Machine
from servespec.policy import MINIATURE, Policy


@frozen
class PoolLine:
    hits: int
    """Blocks that were shared instead of taken."""
    evictions: int

    def line(self) -> str:
        return (
            f"block pool: {self.hits} cache hits, {self.evictions} evictions, all blocks returned"
        )


def pool_line(rng: Rng, policy: Policy = MINIATURE, make: MakeWhole = SpecWhole) -> PoolLine:
    """16 blocks of 4: two prompts with the same first 12 tokens, the first of them again, then
    16 blocks' worth of new content.

    Raises:
        MiniatureError: hits, blocks in use or blocks returned are not what the article asserts.
    """
    part = "block pool"
    system = rng.tokens(12, 0, 99)
    first, second = system + rng.tokens(7, 0, 99), system + rng.tokens(5, 0, 99)
    churn = {f"churn {number}": rng.tokens(16, 100, 199) for number in range(4)}
    config = Config(
        num_blocks=16, block_size=4, max_model_len=64, max_num_batched_tokens=64, max_num_seqs=4
    )
    loop = Loop(Machine(config, policy), make)

    both = _served_at_once(loop, {"first": first, "second": second}, held=7)
    tables = [event.blocks for event in both if isinstance(event, Admitted)]
    hold([len(table) for table in tables] == [5, 5], part, f"tables {tables}, not of 5 and 5")
    hold(tables[0][:3] == tables[1][:3], part, f"tables {tables} share no prefix of 3 blocks")
    hold(hit_blocks(both) == 3, part, f"{hit_blocks(both)} hits of two prompts, not 3")

    again = _served_at_once(loop, {"first again": first}, held=5)
    hold(hit_blocks(again) == 4, part, f"{hit_blocks(again)} hits of a known prompt, not 4")

    full = _served_at_once(loop, churn, held=16)
    said = both + again + full
    evictions = sum(isinstance(event, BlockRemoved) for event in said)
    hold(evictions > 0, part, "nothing is evicted")
    return PoolLine(hit_blocks(said), evictions)


def _served_at_once(loop: Loop, prompts: dict[str, Tokens], held: int) -> tuple[Event, ...]:
    """Admit all the prompts in one pass, in which `held` blocks are in use, and let all of them
    finish with it. The one token that a request must ask for is sampled and never computed, so a
    prompt takes the blocks that the article's `allocate` takes, and `release` follows."""
    for name, prompt in prompts.items():
        loop.submit(name, prompt, max_tokens=1)
    said = loop.schedule()
    hold(len(loop.held) == held, "block pool", f"{len(loop.held)} blocks in use, not {held}")
    said += loop.complete()
    loop.check_returned("block pool")
    return said


def hit_blocks(events: Iterable[Event]) -> int:
    """Blocks that admissions shared: those of the table that were not taken for it. What an
    admission takes is said by the event behind it. (`hit_tokens` does not tell: a prompt that is
    cached to its last token is one token short of its blocks, for that one is computed again.)"""
    return sum(
        len(admitted.blocks) - len(scheduled.new_blocks)
        for admitted, scheduled in pairwise(events)
        if isinstance(admitted, Admitted) and isinstance(scheduled, Scheduled)
    )
