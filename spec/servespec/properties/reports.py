"""Properties of every transition: what its events say, and that ghosts decide nothing."""

from __future__ import annotations

from collections import Counter

from servespec.chain import Chain, Tokens
from servespec.events import (
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Delivered,
    Event,
    Finished,
    Reason,
    Submitted,
)
from servespec.machine import Abort, Transition
from servespec.plan import State
from servespec.pool import Block, Pool
from servespec.properties.base import (
    HELD,
    VACUOUS,
    Fall,
    Outcome,
    Step,
    step_property,
    verdict,
)

# --- what events say -----------------------------------------------------------------------


def cached(pool: Pool) -> Counter[Chain]:
    """The multiset of keys that resident blocks carry."""
    return Counter(block.key for block in pool.blocks if block.key is not None)


@step_property("EVT-1")
def events_tell_the_cache(step: Step) -> Outcome:
    """Folding a transition's cache events over the multiset of cached keys gives the multiset of
    keys afterwards. (A reader that keeps a set goes wrong where a copy stays, rule 6.)"""
    if not any(isinstance(e, BlockStored | BlockRemoved | CacheCleared) for e in step.events):
        was, now = ([b.key for b in s.pool.blocks] for s in (step.before, step.after))
        if was == now:
            return verdict(any(now), None)
    told = cached(step.before.pool)
    for event in step.events:
        match event:
            case BlockStored(_, key, parent):
                if parent is not key.parent:
                    return Fall(f"{key!r} is told with parent {parent!r}")
                told[key] += 1
            case BlockRemoved(_, key):
                told[key] -= 1
            case CacheCleared():
                told.clear()
    there = cached(step.after.pool)
    if told != there:
        return Fall(f"told {dict(told - there)} too much and {dict(there - told)} too little")
    return HELD


@step_property("END-1")
def every_end_is_told_once(step: Step) -> Outcome:
    """A request enters the state with its Submitted event, and leaves it if and only if the
    transition emits its one Finished event, with the right reason; it leaves with the token that
    ends it, and gets none after that."""
    before, after = {r.id for r in step.before.live}, {r.id for r in step.after.live}
    ended = {e.id: e.reason for e in step.events if isinstance(e, Finished)}
    count = sum(isinstance(e, Finished) for e in step.events)
    came = {e.id for e in step.events if isinstance(e, Submitted)}
    if ended.keys() != before - after or count != len(ended):
        return Fall(f"{sorted(before - after)} left, {list(ended)} were told")
    if came != after - before:
        return Fall(f"{sorted(after - before)} came, {sorted(came)} were told")
    due = _due(step)
    if isinstance(step.action, Abort) and step.action.id in before:
        due[step.action.id] = Reason.ABORT
    if ended != due:
        return Fall(f"{ended} were told, {due} were due")
    return verdict(bool(ended) or bool(came), None)


def _due(step: Step) -> dict[str, Reason]:
    """Whom the delivered tokens end, and why. A request that one ends before its last is due twice
    over: that too is no end that can be told."""
    found: dict[str, Reason] = {}
    for e in step.events:
        request = step.before.find(e.id) if isinstance(e, Delivered) else None
        if request is None or not isinstance(e, Delivered):
            continue
        for count, token in enumerate(e.tokens, 1):
            full = request.length + count >= step.machine.config.max_model_len
            if token in request.stop:
                found[e.id] = Reason.STOP
            elif full or len(request.output) + count >= request.max_tokens:
                found[e.id] = Reason.LENGTH
            if e.id in found and count < len(e.tokens):
                found[f"{e.id} before its last token"] = found[e.id]
    return found


@step_property("DEL-1")
def tokens_are_delivered_once(step: Step) -> Outcome:
    """Delivered positions are exactly those by which the output grew: each once, in order,
    whatever was preempted, discarded or rejected."""
    told: dict[str, Tokens] = {}
    for e in step.events:
        if isinstance(e, Delivered):
            request = step.before.find(e.id)
            if request is None or e.id in told or e.first_position != len(request.output):
                return Fall(f"{e.id}: {len(e.tokens)} tokens delivered at {e.first_position}")
            told[e.id] = e.tokens
    for r in step.after.live:
        old = step.before.find(r.id)
        out = () if old is None else old.output
        if r.output != out + told.get(r.id, ()):
            return Fall(
                f"{r.id} has {r.output} after {out}, and {told.get(r.id, ())} was delivered"
            )
    return verdict(bool(told), None)


# --- ghosts --------------------------------------------------------------------------------


def without_ghosts(state: State) -> State:
    """The state with every content forgotten."""
    pool = state.pool
    bare = tuple(Block(b.ref_count, b.key) if b.content else b for b in pool.blocks)
    return State(Pool(bare, pool.free, pool.index), state.waiting, state.running, state.in_flight)


@step_property("GHO-1")
def ghosts_decide_nothing(step: Step) -> Outcome:
    """Forgetting all content changes no transition: same events, same state but for content."""
    if not any(b.content for b in step.before.pool.blocks):
        return VACUOUS
    one = _bare(step.after, step.events) if step.applied else _moved(step, step.before)
    other = _moved(step, without_ghosts(step.before))
    return verdict(True, None if one == other else "content changed the transition")


def _moved(step: Step, state: State) -> Transition | str:
    """What the machine makes of the action in this state, or why it does not carry it out: the
    step may be an engine's that does."""
    try:
        moved = step.machine.apply(state, step.action)
    except Exception as error:  # of no consequence, as long as it is the same without content
        return f"{type(error).__name__}: {error}"
    return _bare(moved.state, moved.events)


def _bare(state: State, events: tuple[Event, ...]) -> Transition:
    return Transition(without_ghosts(state), events)
