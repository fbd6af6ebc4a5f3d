"""The fast engine as a state of the specification, and back.

Theory of operation. `abstraction` reads an engine and says which state of the machine it is in;
`from_state` builds an engine that is in a given state. Content is a ghost that no engine has, so
states are compared without it. Refinement is then two equations:

* REF-1: abstraction(e after a) = machine's state after a, from abstraction(e); with equal events,
  and `a` refused by both or by neither;
* REF-2: e and from_state(abstraction(e)) go on equally, whatever comes.
"""

from __future__ import annotations

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.plan import FastPlan, FastPlanned, FastRequest
from servecheck.engines.fast.trie import Names
from servespec.actions import Submit
from servespec.config import Config
from servespec.plan import Plan, Planned, State
from servespec.policy import Policy
from servespec.pool import Block, Index, Pool
from servespec.request import Request


def abstraction(engine: FastEngine) -> State:
    """The state of the machine that this engine is in, without content."""
    pool = engine.pool
    blocks = tuple(Block(count, pool.trie.key(block)) for block, count in enumerate(pool.ref))
    live = engine.running + engine.waiting
    ranks = {a: i for i, a in enumerate(sorted({r.arrival for r in live}))}
    return State(
        Pool(blocks, tuple(pool.queue()), Index(pool.trie.index())),
        tuple(_request(engine, r, ranks) for r in engine.waiting),
        tuple(_request(engine, r, ranks) for r in engine.running),
        tuple(
            Plan(
                tuple(_planned(plan, e) for e in plan.entries),
                tuple(tuple(table) for table in plan.deferred),
            )
            for plan in engine.in_flight
        ),
    )


def _request(engine: FastEngine, r: FastRequest, ranks: dict[int, int]) -> Request:
    return Request(
        r.id,
        r.namespace,
        tuple(r.text[: r.prompt]),
        r.max_tokens,
        r.priority,
        r.stop,
        ranks[r.arrival],
        engine.pool.trie.chains(r.names),
        tuple(r.text[r.prompt :]),
        r.computed,
        tuple(r.table),
        r.published,
        r.drafts,
        r.prefilling,
    )


def _planned(plan: FastPlan, e: FastPlanned) -> Planned:
    table = plan.gone.get(e.request, e.request.table)
    return Planned(
        e.request.id,
        e.request.namespace,
        e.start,
        e.tokens,
        e.drafts,
        tuple(table[: e.blocks]),
        e.new_blocks,
        e.yields,
        e.admitted,
        e.was_prefilling,
        not plan.live(e.request),
    )


def from_state(config: Config, policy: Policy, state: State) -> FastEngine:
    """An engine in this state of the machine."""
    engine = FastEngine(config, policy)
    pool = engine.pool
    for queue, mine in ((state.running, engine.running), (state.waiting, engine.waiting)):
        for r in queue:
            request = _built(engine, r)
            engine.requests[r.id] = request
            mine.append(request)
    engine.clock = max((r.arrival for r in state.live), default=0)
    pool.ref = [block.ref_count for block in state.pool.blocks]
    pool.refill(state.pool.free)
    for key, copies in state.pool.index.copies.items():
        names = Names()
        text = [t for run in key.runs() for t in run]
        pool.trie.extend(names, key.namespace, text, engine.size)
        pool.trie.restore(names, copies)
        pool.trie.drop(names)
    for plan in state.in_flight:
        engine.in_flight.append(_plan(engine, plan))
    return engine


def _built(engine: FastEngine, r: Request) -> FastRequest:
    submit = Submit(r.id, r.prompt, r.max_tokens, r.namespace, r.priority, r.stop)
    request = FastRequest(submit, r.arrival, engine.config.max_model_len)
    request.text += r.output
    if engine.shares:
        engine.pool.trie.extend(request.names, r.namespace, request.text, engine.size)
    request.computed, request.table = r.computed, list(r.table)
    request.published, request.drafts, request.prefilling = r.published, r.drafts, r.prefilling
    return request


def _plan(engine: FastEngine, plan: Plan) -> FastPlan:
    made = FastPlan()
    for e in plan.entries:
        text = (0,) * e.start + e.tokens[: len(e.tokens) - len(e.drafts)]
        ghost = FastRequest(Submit(e.id, text, 1, e.namespace), 0, 1)
        request = ghost if e.cancelled else engine.requests[e.id]
        if e.cancelled:
            made.gone[ghost] = list(e.table)
        stop, blocks = e.start + len(e.tokens), len(e.table)
        made.add(
            FastPlanned(
                request,
                e.start,
                stop,
                e.drafts,
                blocks,
                e.new_blocks,
                e.yields,
                e.admitted,
                e.was_prefilling,
            )
        )
    made.deferred = [list(table) for table in plan.deferred]
    return made
