"""Properties of what stands in order: the free queue, the index, the two lists of requests."""

from __future__ import annotations

from servespec.events import Admitted, BlockRemoved, BlockStored, Scheduled
from servespec.properties import readings
from servespec.properties.base import Fall, Outcome, Step, step_property, verdict
from servespec.properties.books import Moment
from servespec.properties.dues import hit_tokens, shared_prefix
from servespec.properties.folded import Folded, folded_property

# --- look-up -------------------------------------------------------------------------------


@folded_property("CON-2")
def hit_is_longest_prefix(fold: Folded) -> Outcome:
    """A hit is the longest cached prefix under the cap, and each block of it is the copy that
    policy names."""
    admitted = False
    for m in fold.moments:
        if isinstance(m.event, Admitted):
            admitted = True
            problem = _wrong_hit(fold.step, m, m.event)
            if problem is not None:
                return Fall(f"{m.event.id}: {problem}")
    return verdict(admitted, None)


def _wrong_hit(step: Step, m: Moment, event: Admitted) -> str | None:
    request = m.find(event.id)
    if request is None:
        return "was admitted and never waited"
    longest = shared_prefix(step, m, request)
    if m.hits != longest:
        return f"{m.hits} blocks are shared, {longest} could be"
    if event.hit_tokens != hit_tokens(step, request, longest):
        return f"{longest} blocks are no {event.hit_tokens} tokens of {request.length}"
    for b, key in zip(event.blocks, request.keys[:longest], strict=False):
        if b != readings.answering(step.machine.policy, m.index[key]):
            return f"block {b} of {m.index[key]} answered for {key!r}"
    return None


@folded_property("IDX-4")
def copies_keep_their_order(fold: Folded) -> Outcome:
    """The index is what the events say: each stored block stands behind the older copies of its
    key, each removed one is gone, and nothing else has changed."""
    there = fold.step.after.pool.index.copies
    if fold.index != there:
        for key in (*fold.index, *there):
            told, found = fold.index.get(key, ()), there.get(key, ())
            if told != found:
                return Fall(f"{key!r} is in blocks {told}, oldest first; the index has {found}")
    stored = any(isinstance(e, BlockStored | BlockRemoved) for e in fold.step.events)
    return verdict(stored, None)


# --- the free queue ------------------------------------------------------------------------


@folded_property("LRU-1")
def head_of_queue_is_taken(fold: Folded) -> Outcome:
    """Blocks are taken from the head of the free queue, in order; hits do not count as taken."""
    took = False
    for m in fold.moments:
        match m.event:
            case Admitted(id, _, table):
                hits, taken = table[: m.hits], table[m.hits :]
            case Scheduled(id, new_blocks=taken):
                hits = ()
            case _:
                continue
        took = took or bool(taken)
        idle = tuple(b for b in m.queue if b not in hits)
        if taken != idle[: len(taken)]:
            return Fall(f"{id} took {taken}, the queue was {idle}")
    return verdict(took, None)


@step_property("LRU-2")
def touched_leave_and_evicted_are_forgotten(step: Step) -> Outcome:
    """A block that is hit leaves the free queue, and an evicted key leaves the index, in the same
    transition."""
    stored = {(e.block, e.key) for e in step.events if isinstance(e, BlockStored)}
    free, true = set(step.after.pool.free), False
    for event in step.events:
        match event:
            case Admitted(id, _, table):
                true = True
                if back := free & set(table):
                    return Fall(f"blocks {sorted(back)} of {id} are in the free queue")
            case BlockRemoved(block, key):
                true = True
                copies = step.after.pool.index.copies.get(key, ())
                if block in copies and (block, key) not in stored:
                    return Fall(f"block {block} still answers to {key!r}")
    return verdict(true, None)


@folded_property("LRU-3")
def queue_keeps_its_order(fold: Folded) -> Outcome:
    """After a release the free queue is [un-hashed blocks, by policy] + old order + [blocks with
    keys, in the order of the walk]; nothing else moves."""
    was, there = fold.step.before.pool.free, fold.step.after.pool.free
    if fold.queue != there:
        return Fall(f"the queue is {there}, not {fold.queue}")
    return verdict(was != there, None)


# --- requests ------------------------------------------------------------------------------


@folded_property("QUE-1")
def lists_keep_their_order(fold: Folded) -> Outcome:
    """The waiting queue and the running list are the old ones, moved by what was told: who arrives
    or is preempted has the place that policy gives it, who is admitted goes to the end of the
    running list, who ends is gone; nobody else moves."""
    before, after = fold.step.before, fold.step.after
    waits, runs = [r.id for r in fold.waiting], [r.id for r in fold.running]
    waiting, running = [r.id for r in after.waiting], [r.id for r in after.running]
    if waits != waiting:
        return Fall(f"{waiting} wait in this order, not {waits}")
    if runs != running:
        return Fall(f"{running} run in this order, not {runs}")
    moved = len(waits) != len(before.waiting) or len(runs) != len(before.running)
    return verdict(moved, None)
