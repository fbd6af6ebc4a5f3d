"""The two drivers of the speed yardstick: block bookkeeping alone, and the whole engine.

Both serve the same stream (`servecheck.workload.zipf`: 2,000 requests, prompts that share prefixes
by Zipf's law, 64 tokens of output) with 32 requests at a time over 8,192 blocks of 16 tokens. What
they return does not depend on the speed: hits and evictions must be the same to the block for
every engine that keeps vLLM's rules.

The clock starts where a request reaches the engine: it is read and checked before, on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.log import evicted
from servecheck.engines.fast.manager import BlockManager
from servecheck.workload.zipf import Served
from servespec.actions import Submit
from servespec.chain import Tokens
from servespec.config import Config
from servespec.policy import VLLM_0_33

SIZES = Config(8192, 16, 8192, 8192, 32)
AT_ONCE = 32


@frozen
class Books:
    """What came of a drive."""

    requests: int
    hit_rate: float
    """Of prompt tokens, four digits."""
    evictions: int


@frozen
class Arrival:
    """A request as it reaches an engine, and what the model will answer."""

    submit: Submit
    output: Tokens


def arrivals(stream: Sequence[Served]) -> tuple[Arrival, ...]:
    """The requests of a stream, read and checked."""
    return tuple(Arrival(Submit(s.id, s.prompt, len(s.output)), s.output) for s in stream)


def keep_blocks(stream: Sequence[Arrival]) -> Books:
    """Block bookkeeping alone: texts begin, grow by a token a step, and end."""
    manager = BlockManager(SIZES, VLLM_0_33)
    todo, running = list(reversed(stream)), dict[str, list[int]]()
    prompts = hits = evictions = done = 0
    while todo or running:
        while todo and len(running) < AT_ONCE:
            arrival = todo[-1]
            submit = arrival.submit
            hit = manager.begin(submit.id, submit.prompt)
            if hit is None:
                break
            todo.pop()
            running[submit.id] = list(reversed(arrival.output))
            prompts += len(submit.prompt)
            hits += hit
        ended = []
        for text_id, rest in running.items():
            if not rest or not manager.grow(text_id, rest.pop()):
                ended.append(text_id)
        for text_id in ended:
            manager.end(text_id)
            del running[text_id]
        done += len(ended)
        evictions += manager.evictions()
    return Books(done, round(hits / prompts, 4), evictions)


def serve(stream: Sequence[Arrival]) -> Books:
    """The whole engine: its scheduler plans every step, a stand-in for the model answers."""
    engine = FastEngine(SIZES, VLLM_0_33, tells=False)
    todo, rest = list(reversed(stream)), dict[str, list[int]]()
    prompts = hits = evictions = 0
    while todo or engine.requests:
        while todo and len(engine.requests) < AT_ONCE:
            arrival = todo.pop()
            submit = arrival.submit
            rest[submit.id] = list(reversed(arrival.output))
            engine.submit(submit)
            prompts += len(submit.prompt)
        plan = engine.schedule()
        hits += sum(entry.start for entry in plan.details if entry is not None and entry.admitted)
        asked = zip(plan.requests, plan.yields, strict=True)
        engine.take_in([(rest[request.id].pop(),) if yields else () for request, yields in asked])
        evictions += evicted(engine.log)
        engine.log.clear()
    return Books(len(rest), round(hits / prompts, 4), evictions)
