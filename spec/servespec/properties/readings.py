"""The choices of a policy, read a second time.

A choice function that the machine and its properties share cannot be checked by its own use. So the
properties read the axes here once more, each in other words than `servespec.policy`, and ask
nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from servespec.config import Config
from servespec.policy import (
    Admission,
    FreeWalk,
    HitCap,
    Impossible,
    Lookup,
    Memory,
    Order,
    Policy,
    Readmission,
    Release,
    RunningCap,
    Sharing,
    Victim,
)
from servespec.pool import Blocks
from servespec.request import Request


def can_be_shared(policy: Policy, length: int, block_size: int) -> int:
    """Blocks of a text that a look-up may find: the full ones, but where the last token must be
    computed not the one that it completes."""
    full, over = divmod(length, block_size)
    return full - (over == 0 and policy.hit_cap is HitCap.LAST_TOKEN)


def answering(policy: Policy, copies: Blocks) -> int:
    """The copy that a look-up finds: the first, or the last, that was stored."""
    oldest, *younger = copies
    return younger[-1] if younger and policy.lookup is Lookup.NEWEST else oldest


def let_go(policy: Policy, table: Blocks) -> Blocks:
    """The blocks of a table in the order in which they are let go."""
    return table if policy.free_walk is FreeWalk.HEAD_FIRST else tuple(reversed(table))


def given_back(policy: Policy, taken: int) -> int:
    """Of the blocks taken for a step that never ran, those that go back."""
    return taken if policy.memory is Memory.PAGED else 0


def held_until_done(policy: Policy) -> bool:
    """Who leaves keeps the blocks that a step in flight writes, until it is done."""
    return policy.release is Release.DEFERRED


def full_blocks_have_keys(policy: Policy) -> bool:
    return policy.sharing is not Sharing.OFF


def table_at_admission(config: Config, policy: Policy, slots: int) -> int:
    """Token slots that an admission takes for a first step that reaches so many."""
    reserved = policy.memory is Memory.RESERVED
    return config.max_model_len if reserved else min(slots, config.max_model_len)


def most_computed(config: Config, policy: Policy) -> int:
    """Tokens that a running request may have computed."""
    below = policy.running_cap is RunningCap.BELOW_MODEL_LENGTH
    return config.max_model_len - below


def comes_to(config: Config, request: Request) -> int:
    """Token slots that a request can come to use: its last token needs none, drafts do."""
    longest = len(request.prompt) + request.max_tokens - 1
    ahead = config.num_speculative_tokens + config.num_lookahead_tokens
    return min(longest + ahead, config.max_model_len)


def looked_at(config: Config, policy: Policy, request: Request) -> int:
    """Token slots that must be there before a request is admitted, whatever it takes."""
    if policy.admission is Admission.WHOLE_REQUEST:
        return comes_to(config, request)
    whole = policy.admission is Admission.WHOLE_TEXT
    return min(request.length, config.max_model_len) if whole else 0


def spoken_for(config: Config, policy: Policy, running: Sequence[Request]) -> int:
    """Blocks that those who run may still take, where an admission must leave them these."""
    if policy.admission is not Admission.WHOLE_REQUEST:
        return 0
    return sum(max(config.blocks_for(comes_to(config, r)) - len(r.table), 0) for r in running)


def gives_way(policy: Policy, running: Sequence[Request]) -> str | None:
    """Whom policy names when somebody finds no room; None where nobody gives way."""
    if policy.victim is Victim.NONE:
        return None
    if policy.victim is Victim.LAST_ADMITTED:
        return running[-1].id
    worst = max((r.priority, r.arrival) for r in running)
    return next(r.id for r in running if (r.priority, r.arrival) == worst)


def queued(
    policy: Policy, waiting: Sequence[Request], request: Request, preempted: bool
) -> list[Request]:
    """The waiting queue with one more in it."""
    if policy.order is Order.PRIORITY:
        return sorted([*waiting, request], key=lambda r: (r.priority, r.arrival, r.id))
    first = preempted and policy.readmission is Readmission.HEAD
    return [request, *waiting] if first else [*waiting, request]


def turns_impossible_away(policy: Policy) -> bool:
    """A request that can never fit is refused."""
    return policy.impossible is Impossible.REFUSE
