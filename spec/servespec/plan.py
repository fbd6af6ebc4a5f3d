"""State and plans: what a serving loop holds between two actions.

Theory of operation. A `State` is a pool and three lists: requests that wait, requests that run,
and plans in flight. A request stands in exactly one of the first two; a plan names requests of
the second, until they leave. A `Plan` is what one pass has decided, one entry a request: the
tokens that the forward pass is fed, and the block table it reads and writes through. It holds all
that a worker needs, so it stays true whatever happens to the request before the plan has run.
"""

from __future__ import annotations

from attrs import evolve, frozen

from servespec import policy as choose
from servespec import pool as blocks
from servespec.chain import Namespace, Token, Tokens
from servespec.policy import Policy
from servespec.pool import Blocks, Pool
from servespec.request import Request
from servespec.rules import rule

PADDING: Token = -1
"""A draft that stands for none: it is scheduled, and always rejected (rule 36)."""


@frozen
class Planned:
    """What the worker gets for one request."""

    id: str
    namespace: Namespace
    start: int
    """Position of the first token."""
    tokens: Tokens
    """Text, then drafts."""
    drafts: Tokens
    table: Blocks
    new_blocks: int
    """Blocks taken from the queue for this pass: the last ones of the table."""
    yields: bool
    """The pass reaches the end of the text, so it samples a token (rule 28)."""
    admitted: bool
    was_prefilling: bool
    cancelled: bool = False
    """The request has left, or was sent back to wait: it is computed, its output is ignored."""


@frozen
class Plan:
    entries: tuple[Planned, ...] = ()
    """In order of scheduling."""
    deferred: tuple[Blocks, ...] = ()
    """Tables to release once this plan has run: it still writes to them."""

    def entry(self, request_id: str) -> Planned | None:
        """The entry of a live request."""
        found = (e for e in self.entries if e.id == request_id and not e.cancelled)
        return next(found, None)


@frozen
class State:
    """A serving loop between two actions. It holds no history."""

    pool: Pool
    waiting: tuple[Request, ...] = ()
    """In serving order."""
    running: tuple[Request, ...] = ()
    """In order of admission."""
    in_flight: tuple[Plan, ...] = ()
    """Plans made and not yet completed, oldest first."""

    @property
    def live(self) -> tuple[Request, ...]:
        return self.running + self.waiting

    def find(self, request_id: str) -> Request | None:
        """The live request with this id."""
        return next((r for r in self.live if r.id == request_id), None)


@rule("4", "21", "37", engine="Scheduler._preempt_request")
def sent_back(state: State, policy: Policy, index: int) -> State:
    """A preempted request gives its table back, forgets what was computed and its drafts, keeps its
    output and waits again. A waiting request holds nothing: no block, no reference, no promise."""
    victim = state.running[index]
    running = state.running[:index] + state.running[index + 1 :]
    waits = victim.waits
    place = choose.place_in_waiting(policy, state.waiting, waits, preempted=True)
    waiting = (*state.waiting[:place], waits, *state.waiting[place:])
    pool, in_flight = let_go(state.pool, policy, state.in_flight, victim)
    return State(pool, waiting, running, in_flight)


@rule("D", engine="Scheduler._free_blocks; deferred frees of vLLM with a connector")
def let_go(
    pool: Pool, policy: Policy, in_flight: tuple[Plan, ...], request: Request
) -> tuple[Pool, tuple[Plan, ...]]:
    """Who leaves, or is sent back, has its output ignored. Its table is released at once; a policy
    may hold it until the last step in flight that writes to it is done."""
    plans = list(in_flight)
    last = None
    for i, plan in enumerate(plans):
        if (mine := plan.entry(request.id)) is not None:
            gone = evolve(mine, cancelled=True)
            last = i
            plans[i] = evolve(plan, entries=tuple(gone if e is mine else e for e in plan.entries))
    if last is None or not choose.defers_release(policy):
        return blocks.release(pool, policy, request.table).pool, tuple(plans)
    plans[last] = evolve(plans[last], deferred=(*plans[last].deferred, request.table))
    return pool, tuple(plans)
