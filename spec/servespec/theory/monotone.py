"""Monotony: what more memory, sharing or budget cannot make worse, and where it does.

Theory of operation. It seems that a cache of more blocks evicts no more, that sharing computes no
more, that more of anything ends no later. ORD-2 says under which conditions the first two are true.
`ANOMALIES` has one entry for each condition of ORD-1 and of ORD-2 without which they were found to
be false, and for each further hope. (Not among the conditions: as many slots, since fewer are later
as a matter of course; and the token budget, which did no harm on any stream that was tried.) An
entry is a pair of machines, a space of streams, and what is odd about the runs of a stream; `find`
gives the smallest such stream. All of them are small enough to follow by hand.
"""

from __future__ import annotations

from attrs import evolve, frozen

from servespec.chain import Tokens
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import (
    MINIATURE,
    VLLM_0_33,
    Batching,
    Memory,
    Order,
    Policy,
    Sharing,
    StepMix,
)
from servespec.theory.batching import Twins, later, too_late
from servespec.theory.register import Kind, theorem
from servespec.theory.smallest import Found, Odd, Space, all_kinds, smallest
from servespec.theory.stream import Course, duration, ends, tally


@theorem("ORD-2", Kind.O)
def worse(more: Course, less: Course) -> tuple[str, ...]:
    """One request at a time, and the budget out of the way: more blocks evict no more and compute
    no more tokens. Memory and the budget out of the way: sharing computes no more tokens than none.

    Why, in short. One at a time, a request finds all blocks free, so the pool is a list of
    cached prefixes in order of release. Release puts the deepest block of a table first in
    line, so what is evicted is always the end of a prefix, and a pool of fewer blocks caches a
    part of what one of more blocks does: as with any cache that keeps the last used, the larger
    one hits where the smaller does. With memory out of the way nobody is preempted, so each
    token of a text is computed once, or is a hit. The tests go through every stream of a small
    scope, and long ones at random.

    Returns what the first course has more of: nothing, or, if sharing is what it has more of,
    evictions at most.
    """
    one, two = tally(more.steps), tally(less.steps)
    counts = {
        "evictions": one.evictions > two.evictions,
        "computed tokens": one.computed_tokens > two.computed_tokens,
    }
    return tuple(name for name, true in counts.items() if true)


# --- what is odd about two runs of a stream --------------------------------------------------


def all_served(first: Course, second: Course) -> bool:
    """Both runs came to their end, and nobody was turned away."""
    return not (first.state.live or second.state.live) and not (
        tally(first.steps).refusals or tally(second.steps).refusals
    )


def evicts_more(first: Course, second: Course) -> bool:
    return all_served(first, second) and (
        tally(first.steps).evictions > tally(second.steps).evictions
    )


def computes_more(first: Course, second: Course) -> bool:
    return all_served(first, second) and (
        tally(first.steps).computed_tokens > tally(second.steps).computed_tokens
    )


def ends_later(first: Course, second: Course) -> bool:
    """Some request does."""
    one, two = ends(first.steps), ends(second.steps)
    return all_served(first, second) and any(later(one[id], two[id]) for id in one)


def all_end_later(first: Course, second: Course) -> bool:
    """The last request does."""
    return all_served(first, second) and len(first.steps) > len(second.steps)


def takes_longer(first: Course, second: Course) -> bool:
    """The last request ends later by a clock that counts 1 for a step and 1 for each token."""
    return all_served(first, second) and duration(first.steps) > duration(second.steps)


def starts_or_ends_later(first: Course, second: Course) -> bool:
    """ORD-1 is false."""
    return all_served(first, second) and bool(too_late(first, second))


def preempted_and_later(first: Course, second: Course) -> bool:
    """Some request ends later, in a run in which somebody was preempted."""
    return ends_later(first, second) and tally(first.steps).preemptions > 0


# --- the anomalies ---------------------------------------------------------------------------


@frozen
class Anomaly:
    name: str
    said: str
    """What goes wrong, in a sentence."""
    first: str
    """What the first machine has that the second one has not."""
    second: str
    twins: Twins
    space: Space
    odd: Odd

    def find(self) -> Found | None:
        """The smallest stream of the space on which it happens."""
        return smallest(self.twins, self.space, self.odd)


def texts(alphabet: int, longest: int) -> tuple[Tokens, ...]:
    """Every text of 1 … `longest` tokens."""
    found: list[Tokens] = [()]
    for text in found:
        if len(text) < longest:
            found += [(*text, token) for token in range(alphabet)]
    return tuple(found[1:])


def _batching(config: Config, policy: Policy) -> Twins:
    """Continuous and static."""
    static = evolve(policy, batching=Batching.STATIC)
    return Twins(Machine(config, policy), Machine(config, static))


def _sizes(policy: Policy, first: Config, second: Config) -> Twins:
    return Twins(Machine(first, policy), Machine(second, policy))


def _pool(usable: int, policy: Policy, seats: int = 2, budget: int = 64) -> Config:
    """Blocks of one token; `usable` of them can be handed out."""
    return Config(usable + policy.first_block, 1, 16, budget, seats)


_UNSHARED = evolve(MINIATURE, sharing=Sharing.OFF)
_ROOMY = Config(8, 16, 16, 64, 2)
_SHORT: tuple[Tokens, ...] = ((0,), (0, 0))
_PAIRS = Space(all_kinds(texts(2, 3), 4), most=2, last_arrival=1)

CONTINUOUS, STATICALLY = "continuous", "static"

ANOMALIES = (
    Anomaly(
        "prefill first",
        "ORD-1 without steps of equal cost: where a prefill takes a step of its own, whoever is "
        "admitted to a running batch makes it wait.",
        CONTINUOUS,
        STATICALLY,
        _batching(_ROOMY, evolve(_UNSHARED, step_mix=StepMix.PREFILL_FIRST)),
        Space(all_kinds(_SHORT, 3), most=2, last_arrival=3),
        starts_or_ends_later,
    ),
    Anomaly(
        "finite pool",
        "ORD-1 without memory out of the way: who is admitted early holds the blocks that somebody "
        "behind needs.",
        CONTINUOUS,
        STATICALLY,
        _batching(_pool(3, _UNSHARED), _UNSHARED),
        Space(all_kinds(_SHORT, 3), most=3, last_arrival=1),
        starts_or_ends_later,
    ),
    Anomaly(
        "finite pool, preemption",
        "ORD-1 without memory out of the way: who is admitted early is preempted, and computed "
        "twice.",
        CONTINUOUS,
        STATICALLY,
        _batching(_pool(3, _UNSHARED), _UNSHARED),
        Space(all_kinds(_SHORT, 3), most=3, last_arrival=1),
        preempted_and_later,
    ),
    Anomaly(
        "priority order",
        "ORD-1 without first come first served: who is admitted early, and is worth less, takes "
        "the slot of somebody better who comes later.",
        CONTINUOUS,
        STATICALLY,
        _batching(_ROOMY, evolve(_UNSHARED, order=Order.PRIORITY)),
        Space(all_kinds(((0,),), 2, priorities=(0, 1)), most=4, last_arrival=2),
        starts_or_ends_later,
    ),
    Anomaly(
        "more blocks, more evictions",
        "ORD-2 without one request at a time: with one block more, two run at once, one of them "
        "is preempted, and its content is evicted once more.",
        "5 blocks",
        "4 blocks",
        _sizes(VLLM_0_33, _pool(5, VLLM_0_33), _pool(4, VLLM_0_33)),
        _PAIRS,
        evicts_more,
    ),
    Anomaly(
        "more blocks, more computed tokens",
        "ORD-2 without one request at a time: the same, in tokens.",
        "4 blocks",
        "3 blocks",
        _sizes(VLLM_0_33, _pool(4, VLLM_0_33), _pool(3, VLLM_0_33)),
        _PAIRS,
        computes_more,
    ),
    Anomaly(
        "sharing, more computed tokens",
        "ORD-2 without memory out of the way: a hit lets a second request in, and it is preempted.",
        "sharing",
        "none",
        Twins(
            Machine(_pool(5, VLLM_0_33), VLLM_0_33),
            Machine(_pool(5, VLLM_0_33), evolve(VLLM_0_33, sharing=Sharing.OFF)),
        ),
        _PAIRS,
        computes_more,
    ),
    Anomaly(
        "bigger budget, later end",
        "With one token of budget more, a prompt ends a step earlier, and takes for its first "
        "decode the block that the next request would have started in.",
        "budget 3",
        "budget 2",
        _sizes(VLLM_0_33, _pool(4, VLLM_0_33, budget=3), _pool(4, VLLM_0_33, budget=2)),
        _PAIRS,
        ends_later,
    ),
    Anomaly(
        "more blocks, later end",
        "With one block more, somebody is admitted earlier, in front of others, and preempted.",
        "3 blocks",
        "2 blocks",
        _sizes(MINIATURE, _pool(3, MINIATURE, seats=3), _pool(2, MINIATURE, seats=3)),
        Space(all_kinds(((0,), (1,)), 2), most=4, last_arrival=1),
        ends_later,
    ),
    Anomaly(
        "paged memory, later end",
        "Paged memory admits at least as many as reserved memory, and may have to send one back: "
        "no step is lost by it, but what was computed is computed again, and a step that computes "
        "more takes longer.",
        "paged",
        "reserved",
        Twins(
            Machine(Config(5, 1, 5, 64, 3), _UNSHARED),
            Machine(Config(5, 1, 5, 64, 3), evolve(_UNSHARED, memory=Memory.RESERVED)),
        ),
        Space(all_kinds(((0,), (0, 0), (0, 0, 0)), 2), most=2, last_arrival=0),
        takes_longer,
    ),
)
