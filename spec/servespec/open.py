"""The open machine: every pass that any engine could make, whatever it prefers.

Theory of operation. An exact policy permits one move at each point of a pass; here several are
permitted, and an engine's own choice as it is observed must be one of them. Open are the choices of
the scheduler: which of the two lists goes first, whom to extend and by how many tokens, whom to
send back and when, whom to admit and with how much of what is found, in which copies. What the pool
does is the policy's still (`KEPT`): how memory is handed out, when blocks are published, how they
are let go.

The only guards are what no engine can do without: the budget, the seats, the blocks, the length of
the model, and hits that are the request's own. So the open machine promises *safety* (`PROMISED`):
who owns a block, what a table holds, what can be found, that the budget is kept, that events tell
what happens; and, where blocks are published after the step that writes them, that what is read is
what should have been written. It promises nothing about what is wise or fair: that anybody is
served (LIV-1), the longest prefix found (CON-2), the right one sent back (PRE-1), a reason true
(WRK-1). An exact policy is a way through it: at each point of each of its passes its move is one of
the open ones (`servecheck.explore.opened` asks it of all states of a scope).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attrs import evolve

from servespec import pool as blocks
from servespec.config import Config
from servespec.events import Reason
from servespec.moves import (
    Admit,
    Close,
    Extend,
    Move,
    Pass,
    Preempt,
    Skip,
    computed_by,
    slots_admitted,
    slots_running,
)
from servespec.plan import State
from servespec.policy import Phase, Policy, StepMix, hit_limit
from servespec.pool import Blocks
from servespec.request import Request
from servespec.rules import rule
from servespec.scheduler import padding, start

KEPT = frozenset(
    {
        "memory",
        "sharing",
        "publish",
        "null_block",
        "free_walk",
        "unhashed",
        "hit_cap",
        "impossible",
        "order",
        "readmission",
        "release",
        "reset",
    }
)
"""Axes of `servespec.policy` that are not open; all others the open machine does not read."""

PROMISED = frozenset(
    {
        "OWN-1",
        "OWN-2",
        "OWN-3",
        "OWN-4",
        "TAB-1",
        "IDX-1",
        "IDX-2",
        "IDX-3",
        "IDX-4",
        "PUB-1",
        "CON-1",
        "CON-1r",
        "CON-3",
        "BUD-1",
        "DEM-1",
        "LRU-1",
        "LRU-3",
        "QUE-1",
        "EVT-1",
        "END-1",
        "DEL-1",
        "GHO-1",
        "REQ-1",
        "PLAN-2",
        "ATOM-1",
        "RST-1",
    }
)
"""Properties that hold whatever is chosen: those of content where blocks are published after the
step. Of the others that a transition shows, each falls: WRK-1, TOK-1, ADM-1, PRE-1, CON-2, BUD-2
say what is chosen; LRU-2 supposes that nobody is sent back in the pass that admits it."""

PASSED_OVER = (
    Reason.PREFILL,
    Reason.NO_TOKENS,
    Reason.MODEL_LENGTH,
    Reason.NO_BLOCKS,
)
"""What may be said when a running request is passed over."""

NOT_ADMITTED = (
    Reason.PREEMPTION,
    Reason.BATCH,
    Reason.NO_TOKENS,
    Reason.NO_SEATS,
    Reason.PADDING,
    Reason.NO_CHUNKS,
    Reason.NO_ROOM,
)
"""What may be said when a waiting one is."""


@rule("O", engine="none: what every engine has in common")
def starts(config: Config, policy: Policy, state: State) -> tuple[Pass, ...]:
    """An open pass begins with either of its lists."""
    return tuple(start(config, evolve(policy, step_mix=mix), state) for mix in StepMix)


@rule("O", engine="none: what every engine has in common")
def permitted(p: Pass) -> tuple[Move, ...]:
    """At each point of an open pass a running request is extended by any number of its tokens that
    fit, or anybody running is sent back; a waiting one is admitted with any part of what is found
    of its text, in any copies, and any number of tokens; or it is passed over, or admissions end,
    for whatever reason. Nothing is permitted when both lists are done."""
    if not p.phases:
        return ()
    if p.done:
        return (Close(),)
    return tuple(_running(p) if p.phases[0] is Phase.RUNNING else _waiting(p))


def _running(p: Pass) -> Iterator[Move]:
    request = p.queue[p.cursor]
    most = most_tokens(p, request, request.computed, len(request.drafts))
    for tokens in range(1, most + 1):
        slots = slots_running(p.config, request, tokens)
        have, size = len(request.table), p.config.block_size
        if blocks.demand(p.state.pool, have, (), slots, size) <= len(p.state.pool.free):
            yield Extend(tokens)
    for victim in range(len(p.state.running)):
        yield from (Preempt(victim, tokens) for tokens in range(1, most + 1))
    yield from map(Skip, PASSED_OVER)


def _waiting(p: Pass) -> Iterator[Move]:
    request = p.queue[p.cursor]
    if len(p.state.running) < p.config.max_num_seqs:
        for hits in findable(p, request):
            yield from _admissions(p, request, hits)
    yield from map(Skip, NOT_ADMITTED)
    yield from map(Close, NOT_ADMITTED)


def _admissions(p: Pass, request: Request, hits: Blocks) -> Iterator[Admit]:
    computed, pool = computed_by(hits, request, p.config), p.state.pool
    for drafts in dict.fromkeys(((), padding(p.config))):
        for tokens in range(1, most_tokens(p, request, computed, len(drafts)) + 1):
            admit = Admit(hits, tokens, drafts)
            slots = slots_admitted(p, request, admit)
            if blocks.demand(pool, 0, hits, slots, p.config.block_size) <= len(pool.free):
                yield admit


def most_tokens(p: Pass, request: Request, computed: int, drafts: int) -> int:
    """Most tokens that a request can compute: what there is of text and drafts, the tokens left,
    and what max_model_len leaves."""
    there = request.length + drafts - computed
    return min(there, p.tokens_left, p.config.max_model_len - computed)


def findable(p: Pass, request: Request) -> Iterator[Blocks]:
    """Every part of the text that an engine may find: any prefix that is there, of each block any
    copy. None is longer than the cap on hits."""
    copies: list[Blocks] = []
    index = p.state.pool.index.copies
    for key in request.keys[: hit_limit(p.policy, request.length, p.config.block_size)]:
        if key not in index:
            break
        copies.append(index[key])
    for count in range(len(copies), -1, -1):
        yield from product(*copies[:count])
