"""Part 2 of the article's program: the same stream of requests under static and continuous
batching."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import frozen

from servecheck.engines.whole import MakeWhole, SpecWhole
from servecheck.miniature.chance import Rng
from servecheck.miniature.loop import BLOCK_SIZE, Loop, delivered, distinct, hold
from servespec.config import Config, blocks_for
from servespec.events import Event, Finished
from servespec.machine import Machine
from servespec.policy import MINIATURE, STATIC, Policy

SLOTS = 8
"""Requests that run at once."""


@frozen
class BatchLine:
    batching: str
    steps: int
    """Idle steps included."""
    mean_latency: float
    """Steps from arrival to the end of the step that finishes, per request."""
    utilization: float
    """Tokens generated per slot and step."""

    def line(self) -> str:
        return (
            f"{self.batching} batching: {self.steps} steps, mean latency {self.mean_latency:.1f} "
            f"steps, slot utilization {self.utilization:.2f}"
        )


@frozen
class Arrival:
    """A request of the stream: the step that it arrives before, and its sizes in tokens."""

    step: int
    prompt: int
    output: int


def draw_stream(rng: Rng, count: int = 40) -> tuple[Arrival, ...]:
    """The article's stream, in order of arrival."""
    stream: list[Arrival] = []
    clock = 0
    for _ in range(count):
        clock += rng.between(0, 6)
        output = rng.between(8, 64)  # drawn before the prompt
        stream.append(Arrival(clock, rng.between(16, 128), output))
    return tuple(stream)


def batch_line(
    stream: Sequence[Arrival], policy: Policy, slots: int = SLOTS, make: MakeWhole = SpecWhole
) -> BatchLine:
    """Run a stream, in order of arrival, through `slots` slots.

    The article prefills for nothing, and has no memory: so a pass has tokens for all prompts at
    once, and the pool blocks for all slots.
    """
    longest = max(arrival.prompt + arrival.output for arrival in stream)
    config = Config(
        num_blocks=slots * blocks_for(longest, BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_model_len=longest,
        max_num_batched_tokens=slots * longest,
        max_num_seqs=slots,
    )
    loop = Loop(Machine(config, policy), make)
    # Until the last arrival steps may be idle; from then on each yields a token.
    limit = stream[-1].step + sum(arrival.output for arrival in stream)
    due = deque(enumerate(stream))
    steps: list[tuple[Event, ...]] = []
    while due or loop.state.live:
        hold(len(steps) < limit, "batching", f"the stream has not ended after {len(steps)} steps")
        while due and due[0][1].step <= len(steps):
            number, arrival = due.popleft()
            loop.submit(str(number), distinct(number, arrival.prompt), arrival.output)
        steps.append(loop.schedule() + loop.complete())
    loop.check_returned("batching")
    ends = {
        event.id: step
        for step, said in enumerate(steps, 1)
        for event in said
        if isinstance(event, Finished)
    }
    latency = sum(ends[str(number)] - arrival.step for number, arrival in enumerate(stream))
    generated = sum(delivered(said) for said in steps)
    return BatchLine(
        policy.batching.value,
        len(steps),
        latency / len(stream),
        generated / (len(steps) * slots),
    )


def batch_lines(
    rng: Rng,
    static: Policy = STATIC,
    continuous: Policy = MINIATURE,
    make: MakeWhole = SpecWhole,
) -> tuple[BatchLine, BatchLine]:
    """The same 40 requests under both policies.

    Raises:
        MiniatureError: continuous batching ends later, or its mean latency is no lower.
    """
    stream = draw_stream(rng)
    fixed = batch_line(stream, static, make=make)
    rolling = batch_line(stream, continuous, make=make)
    hold(rolling.steps <= fixed.steps, "batching", "continuous batching ends later")
    lower = rolling.mean_latency < fixed.mean_latency
    hold(lower, "batching", "the mean latency of continuous batching is no lower")
    return fixed, rolling
