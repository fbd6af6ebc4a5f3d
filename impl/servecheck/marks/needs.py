"""What a mark needs: conditions on sizes and choices without which it does not exist."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from servespec.config import Config
from servespec.policy import (
    AfterPreemption,
    FreeWalk,
    HitCap,
    Memory,
    Order,
    Policy,
    Publish,
    Release,
    Reset,
    Sharing,
    Victim,
)


@frozen
class Needs:
    """A condition on sizes and choices without which a mark does not exist."""

    said: str
    met: Callable[[Config, Policy], bool]

    def __and__(self, other: Needs) -> Needs:
        said = ", ".join(s for s in (self.said, other.said) if s)
        return Needs(said, lambda c, p: self.met(c, p) and other.met(c, p))

    def __or__(self, other: Needs) -> Needs:
        said = f"{self.said}; or {other.said}"
        return Needs(said, lambda c, p: self.met(c, p) or other.met(c, p))


ANY = Needs("", lambda c, p: True)
SHARED = Needs("sharing", lambda c, p: p.sharing is Sharing.FULL_BLOCKS)
AT_SCHEDULE = SHARED & Needs("publish at schedule", lambda c, p: p.publish is Publish.AT_SCHEDULE)
HEAD_FIRST = SHARED & Needs(
    "tables are let go head first", lambda c, p: p.free_walk is FreeWalk.HEAD_FIRST
)
CAP = SHARED & Needs("hit cap", lambda c, p: p.hit_cap is HitCap.LAST_TOKEN)
NO_CAP = SHARED & Needs("no hit cap", lambda c, p: p.hit_cap is HitCap.NONE)
PREEMPTING = Needs(
    "victims, paged memory",
    lambda c, p: p.victim is not Victim.NONE and p.memory is Memory.PAGED,
)
BY_PRIORITY = PREEMPTING & Needs(
    "victims by priority", lambda c, p: p.victim is Victim.WORST_PRIORITY
)
GOING_ON = PREEMPTING & Needs(
    "admissions go on after a preemption",
    lambda c, p: p.after_preemption is AfterPreemption.GO_ON,
)
LAST_FIRST = PREEMPTING & Needs(
    "the last admitted gives way", lambda c, p: p.victim is Victim.LAST_ADMITTED
)
ORDERED = Needs("order by priority", lambda c, p: p.order is Order.PRIORITY)
DRAFTS = Needs("γ ≥ 1", lambda c, p: c.num_speculative_tokens > 0)
TWO_DRAFTS = Needs("γ ≥ 2", lambda c, p: c.num_speculative_tokens > 1)
CHUNKS = Needs("chunked prefill", lambda c, p: p.chunked_prefill)
THRESHOLD = Needs("a threshold", lambda c, p: c.long_prefill_token_threshold > 0)
WATERMARK = Needs("a watermark", lambda c, p: c.watermark_blocks > 0)
LOOKAHEAD = Needs("look-ahead", lambda c, p: c.num_lookahead_tokens > 0)
RESERVED = Needs("reserved memory", lambda c, p: p.memory is Memory.RESERVED)
DISCARDS = Needs("no block is published unwritten", lambda c, p: not p.publishes_unwritten)
DEFERS = Needs("deferred release", lambda c, p: p.release is Release.DEFERRED)
RESETS = Needs("resets that preempt", lambda c, p: p.reset is Reset.PREEMPT_FIRST)
BLOCKS_OF_ONE = SHARED & Needs("block size 1", lambda c, p: c.block_size == 1)
