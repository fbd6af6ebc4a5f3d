"""A stream served by the fast engine, and what came of it in figures.

Theory of operation. `served` drives the engine as `servespec.theory.stream.run` drives the machine:
a step is what arrives, a pass, and its outcome. The fast engine refines the machine, so the events
are the same (the tests compare them), and a stream of thousands of requests takes seconds. All
figures are folds over the events, those of `servespec.theory.stream`.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from servecheck.engines.fast.engine import FastEngine
from servespec.actions import Complete, Output, Schedule
from servespec.config import Config, blocks_for
from servespec.events import Skipped
from servespec.policy import Policy
from servespec.theory.stream import ANSWER, Events, Stream, Tally, ends, starts, tally

LIMIT = 1_000_000
"""Steps after which a run is given up."""


def served(
    config: Config, policy: Policy, stream: Stream, limit: int = LIMIT
) -> tuple[Events, ...]:
    """The events of each step, until all have left, nothing moves, or so many steps were made."""
    engine = FastEngine(config, policy)
    due = list(reversed(stream.arrivals))
    steps: list[Events] = []
    while (due or engine.requests) and len(steps) < limit:
        said: Events = ()
        while due and due[-1].step <= len(steps):
            said += engine.apply(due.pop().submit)
        said += engine.apply(Schedule())
        outputs = (
            Output(entry.request.id, (ANSWER,))
            for entry in engine.in_flight[0].entries
            if entry.yields
        )
        said += engine.apply(Complete(tuple(outputs)))
        steps.append(said)
        # Nobody is on the way, and this step did nothing but pass over who is here: so will all.
        if not due and engine.requests and all(isinstance(event, Skipped) for event in said):
            break
    return tuple(steps)


def unhindered(stream: Stream, slots: int, block_size: int, policy: Policy) -> Config:
    """Sizes with which memory and the budget are out of the way: a block table for each slot, and
    tokens for all prompts at once."""
    longest = max(len(a.submit.prompt) + a.submit.max_tokens for a in stream.arrivals)
    return Config(
        num_blocks=slots * blocks_for(longest, block_size) + policy.first_block,
        block_size=block_size,
        max_model_len=longest,
        max_num_batched_tokens=slots * longest,
        max_num_seqs=slots,
    )


@frozen
class Latency:
    """Steps from the arrival of a request to the end of the step in which it ends."""

    mean: float
    p50: int
    p99: int


def latency_of(values: Sequence[int]) -> Latency | None:
    """None of nobody. A percentile is the value of a request: the smallest below or at which so
    many of all are (nearest rank)."""
    if not values:
        return None
    ranked = sorted(values)

    def percentile(part: int) -> int:
        return ranked[-(-part * len(ranked) // 100) - 1]

    return Latency(sum(ranked) / len(ranked), percentile(50), percentile(99))


@frozen
class Figures:
    """What a run came to."""

    counts: Tally
    ended: int
    left: int
    """Requests that had not ended when the run was given up; refused ones are not among them."""
    latency: Latency | None
    """Of those that ended."""
    utilization: float
    """Tokens delivered per slot and step."""


def figures(stream: Stream, steps: Sequence[Events], slots: int) -> Figures:
    counts, done = tally(steps), ends(steps)
    waited = [done[a.submit.id] - a.step for a in stream.arrivals if a.submit.id in done]
    return Figures(
        counts,
        ended=len(done),
        left=len(stream.arrivals) - len(done) - counts.refusals,
        latency=latency_of(waited),
        utilization=counts.delivered_tokens / (max(len(steps), 1) * slots),
    )


@frozen
class Order:
    """How many requests one run serves earlier or later than another."""

    starts_earlier: int
    starts_later: int
    ends_earlier: int
    ends_later: int


def order(first: Sequence[Events], second: Sequence[Events]) -> Order:
    """Of those that both runs serve."""

    def compared(one: dict[str, int], two: dict[str, int]) -> tuple[int, int]:
        both = one.keys() & two.keys()
        return sum(one[id] < two[id] for id in both), sum(one[id] > two[id] for id in both)

    return Order(*compared(starts(first), starts(second)), *compared(ends(first), ends(second)))
